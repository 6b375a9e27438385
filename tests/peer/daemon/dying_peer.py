"""A `minga` whose process is killed, as by `kill -9`, in the middle of its N-th all-reduce with others.

python dying_peer.py N join INVITE …
"""

import os
import signal
import sys

from peer.cli import main
from peer.swarm.stream import Stream

real_send = Stream.send
rounds: set[str] = set()


async def send(self: Stream, header, body=b"", timeout=30.0):  # type: ignore[no-untyped-def]
    """Count rounds by their keys, and die when half of the N-th one's first piece has left."""
    if "terms" in header:
        rounds.add(header["key"])
    if "piece" in header and len(rounds) >= fatal:
        await real_send(self, header, memoryview(body)[: len(body) // 2], timeout)
        os.kill(os.getpid(), signal.SIGKILL)
    return await real_send(self, header, body, timeout)


fatal = int(sys.argv.pop(1))
Stream.send = send  # type: ignore[method-assign]
main()
