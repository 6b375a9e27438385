"""Real worker processes that are slow, lack memory or text, or lose their daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from peer.errors import WorkerFailed


def test_emulated_speed_deadline_and_weights_that_change_between_microbatches(workers, make_manifest):
    manifest = make_manifest()
    arena = workers.new_arena(manifest)
    older, newer = arena.weights.copy(), workers.new_weights(manifest, 1)

    async def scenario():
        async with workers.running(manifest, arena, emulate_throughput=50.0) as worker:
            measured = await worker.measure()
            assert measured.microbatch == 10
            assert measured.throughput == pytest.approx(50.0, rel=0.01)
            await workers.show(worker, arena, 3, older)
            began = time.monotonic()
            worker.begin(epoch=3, quota=1000, first_index=0, deadline=began + 1.0)
            gathered = await worker.finish()
            took = time.monotonic() - began
            # 50 samples in a second, in time to a small part of a microbatch; a busy machine may be less exact.
            assert 30 <= gathered.samples <= 50 and gathered.stale == 0
            assert 0.9 < took < 1.4
            workers.assert_is_exactly(arena, gathered, manifest, older, 0)

            arena.weights[:] = np.nan  # of no effect until it is told
            worker.begin(epoch=4, quota=75, first_index=9, deadline=None)
            await workers.until(lambda: worker.samples_so_far >= 10)
            await asyncio.sleep(0.1)  # into the midst of a microbatch
            at_order = worker.samples_so_far
            await workers.show(worker, arena, 4, newer)
            at_answer = worker.samples_so_far  # or more, if this process was kept waiting
            arena.weights[:] = np.nan  # it has its own copy now
            gathered = await worker.finish()
            assert (gathered.samples, gathered.remark) == (75, "")
            assert at_order <= gathered.stale <= at_answer and gathered.stale in range(10, 75, 10)
            workers.assert_is_exactly(arena, gathered, manifest, older, 9, newer)

            worker.begin(epoch=4, quota=10, first_index=0, deadline=None)
            again = await worker.finish()
            assert (again.samples, again.stale) == (10, 0)
            workers.assert_is_exactly(arena, again, manifest, newer, 0)

    asyncio.run(scenario())


def test_start_fails_with_a_sentence(workers, make_manifest, tmp_path):
    absent = {"path": "/absent/a.txt", "sha256": "0" * 64, "size": 100}
    manifest = make_manifest(data={"kind": "files", "files": [absent]})
    says = "^the run's file a.txt is not at /absent/a.txt; name the folder that holds it with --data$"
    with pytest.raises(WorkerFailed, match=says):
        asyncio.run(workers.start(manifest, workers.new_arena(manifest), cache_dir=tmp_path))


def test_text_that_goes_away_ends_the_worker_with_a_reason(workers, make_manifest, files_section, tmp_path):
    text = tmp_path / "a.txt"
    text.write_bytes(b"0123456789abcdef" * 100)
    manifest = make_manifest(data=files_section(text))
    arena = workers.new_arena(manifest)

    async def scenario():
        async with workers.running(manifest, arena, cache_dir=tmp_path / "cache") as worker:
            text.unlink()
            worker.microbatch = 1
            worker.begin(epoch=0, quota=5, first_index=0, deadline=None)
            gathered = await worker.finish()
            assert gathered.samples == 0
            assert "cannot be read any more" in gathered.remark
            assert await worker.died == gathered.remark

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of another process")
def test_memory_that_runs_out_makes_smaller_microbatches(workers, make_manifest):
    manifest = make_manifest(training={"sequence_length": 256})
    arena = workers.new_arena(manifest)

    async def scenario():
        async with workers.running(manifest, arena, emulate_throughput=2000.0) as worker:
            process = psutil.Process(worker.pid)
            limit = process.memory_info().vms + (150 << 20)
            process.rlimit(psutil.RLIMIT_AS, (limit, limit))
            measured = await worker.measure()
            assert 1 <= measured.microbatch < 400  # what lasts a fifth of a second would take a gigabyte
            limit = process.memory_info().vms + (5 << 20)
            process.rlimit(psutil.RLIMIT_AS, (limit, limit))
            worker.begin(epoch=0, quota=measured.microbatch + 3, first_index=0, deadline=None)
            gathered = await worker.finish()
            assert gathered.samples == measured.microbatch + 3
            workers.assert_is_exactly(arena, gathered, manifest, arena.weights, 0)

    asyncio.run(scenario())


DAEMON = """
import asyncio, sys
from pathlib import Path
from peer.training.arena import Arena
from peer.training.worker_process import Worker
from protocol.manifest import parse_manifest
host = sys.argv[1]
manifest = parse_manifest({"run": {"name": "t"}, "model": {"preset": "nano"}, "host": host})
async def main():
    arena = Arena.create(131136, ahead=True)
    worker = await Worker.start(manifest, arena, device="cpu", peer=host, data_dir=None, cache_dir=Path("/nonexistent"),
                                emulate_throughput=1.0)
    worker.microbatch = 1
    worker.begin(0, 10**9, 0, None)
    print(worker.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_worker_does_not_outlive_its_daemon(workers):
    with subprocess.Popen([sys.executable, "-c", DAEMON, workers.peer], stdout=subprocess.PIPE, text=True) as daemon:
        worker = psutil.Process(int(daemon.stdout.readline()))
        assert os.getsid(worker.pid) == worker.pid != os.getsid(daemon.pid)
        daemon.kill()
        assert not psutil.wait_procs([worker], timeout=10)[1]


def test_cancelled_start_leaves_no_process(workers, make_manifest):
    manifest = make_manifest()
    arena = workers.new_arena(manifest)

    async def scenario():
        before = set(psutil.Process().children())
        starting = asyncio.create_task(workers.start(manifest, arena))
        await workers.until(lambda: set(psutil.Process().children()) - before)
        (child,) = set(psutil.Process().children()) - before
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not child.is_running()

    asyncio.run(scenario())
