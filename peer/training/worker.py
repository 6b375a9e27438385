"""The worker process: `python -m peer.training.worker SOCKET ARENA PARENT`, started by `worker_process.py`.

It may be killed at any time, which is how a device is freed: what counts is in the daemon and in shared memory. It
ends by itself when the daemon's end of the socket closes or the daemon dies. Ctrl-C is the daemon's to interpret.
This file imports nothing heavy, so that it is bound to its parent before torch is loaded.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time

from peer.errors import PeerError
from peer.processes import die_with_parent
from peer.training import wire


class Inbox:
    """Messages of the daemon, read by a thread of their own, so that `stop` and the end are seen at once."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._waiting: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
        self._stopped = 0
        self._receiving = threading.Lock()
        self.refresh: wire.Message = {"number": 0, "epoch": -1, "ahead": False}
        """the last order to load the weights anew"""
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> wire.Message:
        return self._waiting.get()

    def is_stopped(self, work: int) -> bool:
        """Whether the daemon wants this piece of work handed in, as of all that it has said until now."""
        while self._is_waiting(socket.MSG_DONTWAIT):
            time.sleep(0.0002)  # lets the other thread read
        with self._receiving:
            return self._stopped >= work

    def _listen(self) -> None:
        while True:
            self._is_waiting()
            with self._receiving:
                message = wire.receive(self._channel)
                if message is None:
                    os._exit(0)  # in the midst of whatever: an uncommitted microbatch is lost, nothing else
                if message["do"] == "stop":
                    self._stopped = message["work"]
                elif message["do"] == "refresh":
                    self.refresh = message
                    self._waiting.put(message)  # for when there is no work in hand
                else:
                    self._waiting.put(message)

    def _is_waiting(self, flags: int = 0) -> bool:
        """Whether a message, or the end, waits to be received; without flags, waits until one does."""
        try:
            self._channel.recv(1, socket.MSG_PEEK | flags)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


def main(arguments: list[str]) -> int:
    channel_fd, arena_fd, parent = (int(argument) for argument in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()  # elsewhere than on Linux the closed socket tells us
    if os.getppid() != parent:
        return 0  # it died before we asked
    channel = socket.socket(fileno=channel_fd)
    inbox = Inbox(channel)
    settings = inbox.next()

    def send(message: wire.Message) -> None:
        channel.sendall(wire.encode(message))

    try:
        from peer.training.session import open_session  # torch takes seconds to load

        session = open_session(settings, arena_fd, lambda: inbox.refresh, send)
        send({"is": "answered", "request": settings["request"], "device": session.device})
        while True:
            session.answer(inbox.next(), inbox.is_stopped)
    except PeerError as error:
        send({"is": "failed", "reason": str(error)})
        return 1
    except (BrokenPipeError, ConnectionResetError):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
