"""A real worker process. What it hands in is compared with the same computation in this process."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import time

import numpy as np
import pytest
import torch

from peer.errors import WorkerFailed
from peer.training import worker_process
from peer.training.data import open_corpus
from peer.training.model import build, load_flat


def content(arena, gathered):
    return arena.slots[gathered.slot].tobytes()


def test_an_epochs_work(workers, shared, tmp_path):
    manifest, arena, worker, weights = shared.manifest, shared.arena, shared.worker, shared.weights

    async def scenario():
        await workers.show(worker, arena, 3, weights)
        worker.begin(epoch=3, quota=37, first_index=100, deadline=None)
        first = await worker.finish()
        assert (first.epoch, first.samples, first.stale, first.remark) == (3, 37, 0, "")
        workers.assert_is_exactly(arena, first, manifest, weights, 100)

        # The next epoch begins with new weights and an empty sum.
        await workers.show(worker, arena, 4, weights * np.float32(0.5))
        worker.begin(epoch=4, quota=5, first_index=0, deadline=time.monotonic() + 60)
        second = await worker.finish()
        assert (second.samples, second.stale) == (5, 0)
        workers.assert_is_exactly(arena, second, manifest, weights * np.float32(0.5), 0)

        # Stopped from outside, with what there is. It was shown no weights for this epoch.
        worker.begin(epoch=5, quota=10**9, first_index=0, deadline=None)
        await workers.until(lambda: worker.samples_so_far > 0)
        worker.stop()
        third = await worker.finish()
        assert 0 < third.stale == third.samples < 10**6
        workers.assert_is_exactly(arena, third, manifest, weights * np.float32(0.5), 0)

        # A deadline that has passed: nothing.
        worker.begin(epoch=6, quota=10, first_index=0, deadline=time.monotonic() - 1)
        nothing = await worker.finish()
        assert (nothing.samples, nothing.loss_sum, nothing.stale) == (0, 0.0, 0)

        # Ctrl-C on the terminal is for the daemon.
        os.kill(worker.pid, signal.SIGINT)
        await workers.show(worker, arena, 6, weights)
        model, heldout = build(manifest), open_corpus(manifest, None, tmp_path).evaluation()
        load_flat(model, weights)
        expected = model.loss(torch.from_numpy(heldout)).mean().item() / math.log(2)
        assert await worker.evaluate() == pytest.approx(expected, rel=1e-5)
        assert not worker.died.done()

    shared.run(scenario())


def test_silent_worker_is_not_waited_for(workers, shared, monkeypatch):
    manifest, arena, worker, weights = shared.manifest, shared.arena, shared.worker, shared.weights
    monkeypatch.setattr(worker_process, "HAND_IN_SECONDS", 0.3)

    async def scenario():
        await workers.show(worker, arena, 10, weights)
        worker.begin(epoch=10, quota=10**9, first_index=0, deadline=time.monotonic() + 0.5)
        await workers.until(lambda: worker.samples_so_far > 0)
        os.kill(worker.pid, signal.SIGSTOP)
        began = time.monotonic()
        gathered = await worker.finish()
        assert time.monotonic() - began < 3.0
        assert "silent at the deadline" in gathered.remark
        workers.assert_is_exactly(arena, gathered, manifest, weights, 0)
        kept = content(arena, gathered)
        os.kill(worker.pid, signal.SIGCONT)
        assert math.isfinite(await worker.evaluate())  # it has come to itself and ended the old work
        assert content(arena, gathered) == kept

        # Nor does it write there in the next epoch, whatever it had committed after it was given up.
        monkeypatch.undo()
        worker.begin(epoch=11, quota=2 * worker.microbatch + 5, first_index=0, deadline=None)
        following = await worker.finish()
        workers.assert_is_exactly(arena, following, manifest, weights, 0)
        assert content(arena, gathered) == kept

    shared.run(scenario())


def test_daemon_that_was_suspended_hears_what_the_worker_said_meanwhile(workers, shared, monkeypatch):
    manifest, arena, worker, weights = shared.manifest, shared.arena, shared.worker, shared.weights
    monkeypatch.setattr(worker_process, "HAND_IN_SECONDS", 0.1)

    async def scenario():
        await workers.show(worker, arena, 15, weights)
        worker.begin(epoch=15, quota=10**9, first_index=0, deadline=time.monotonic() + 0.5)
        await workers.until(lambda: worker.samples_so_far > 0)
        before = worker.samples_so_far
        # Blocks the event loop, until the worker has handed in and would have been given up.
        time.sleep(1.5 + 2 * worker.microbatch / worker.throughput)
        gathered = await worker.finish()
        assert gathered.remark == "" and gathered.samples > before
        workers.assert_is_exactly(arena, gathered, manifest, weights, 0)

    shared.run(scenario())


def test_held_sum_stays_while_the_next_epoch_is_gathered(workers, shared):
    manifest, arena, worker, weights = shared.manifest, shared.arena, shared.worker, shared.weights

    async def scenario():
        await workers.show(worker, arena, 20, weights)
        held = before = None
        for epoch in range(20, 24):
            # At least three microbatches, so that one slot is written to twice.
            worker.begin(epoch, quota=2 * worker.microbatch + 1, first_index=epoch, deadline=None)
            gathered = await worker.finish()
            assert held is None or content(arena, held) == before
            workers.assert_is_exactly(arena, gathered, manifest, weights, epoch)
            held, before = gathered, content(arena, gathered)
        # An epoch without samples in between does not make it forget what is held.
        for epoch, seconds, samples in ((24, -1.0, 0), (25, 60.0, 20)):
            worker.begin(epoch, quota=20, first_index=0, deadline=time.monotonic() + seconds)
            assert (await worker.finish()).samples == samples
            assert content(arena, held) == before

    shared.run(scenario())


def test_idle_worker_takes_weights_and_a_later_order_serves_for_an_earlier(workers, shared):
    arena, worker, weights = shared.arena, shared.worker, shared.weights

    async def scenario():
        worker.refresh(30)
        waiting = asyncio.create_task(worker.refreshed())
        await asyncio.sleep(0)
        worker.refresh(31)
        async with asyncio.timeout(20):
            await waiting
            await worker.refreshed()
        arena.weights[:] = np.nan  # it has its own copy now
        assert math.isfinite(await worker.evaluate())
        arena.weights[:] = weights

    arena.weights[:] = weights
    shared.run(scenario())


def test_predicted_weights_serve_until_the_real_ones_are_there(workers, shared):
    manifest, arena, worker, weights = shared.manifest, shared.arena, shared.worker, shared.weights
    predicted, newer = workers.new_weights(manifest, 2), workers.new_weights(manifest, 3)

    async def scenario():
        await workers.show(worker, arena, 32, weights)
        arena.ahead[:] = predicted
        worker.refresh_ahead(32)
        await worker.refreshed()
        arena.ahead[:] = np.nan  # it has its own copy now
        worker.begin(epoch=33, quota=worker.microbatch + 5, first_index=0, deadline=None)
        ahead = await worker.finish()
        assert ahead.stale == ahead.samples == worker.microbatch + 5
        workers.assert_is_exactly(arena, ahead, manifest, predicted, 0)

        # The real ones come while it works; a prediction that comes after them is not taken.
        arena.ahead[:] = predicted
        worker.refresh_ahead(32)
        await worker.refreshed()
        worker.begin(epoch=33, quota=10**9, first_index=3, deadline=None)
        await workers.until(lambda: worker.samples_so_far > 0)
        await workers.show(worker, arena, 33, newer)
        worker.refresh_ahead(32)
        await worker.refreshed()
        at_order = worker.samples_so_far
        await workers.until(lambda: worker.samples_so_far > at_order)
        worker.stop()
        both = await worker.finish()
        assert 0 < both.stale < both.samples
        workers.assert_is_exactly(arena, both, manifest, predicted, 3, newer)

        # Ordered one after the other without a pause: the real ones.
        worker.refresh_ahead(33)
        worker.refresh(34)
        await worker.refreshed()
        worker.begin(epoch=34, quota=5, first_index=0, deadline=None)
        last = await worker.finish()
        assert last.stale == 0
        workers.assert_is_exactly(arena, last, manifest, newer, 0)

    shared.run(scenario())


async def freeze_after(workers, worker, seconds):
    """In the midst of work, a while after the first microbatch. From then on somebody waits for it to take weights."""
    await workers.until(lambda: worker.samples_so_far > 0)
    await asyncio.sleep(seconds)
    os.kill(worker.pid, signal.SIGSTOP)
    worker.refresh(100)
    waiting = asyncio.create_task(worker.refreshed())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    return waiting


async def finish_dead(worker, waiting, reason):
    async with asyncio.timeout(20):
        await waiting
        gathered = await worker.finish()
    assert gathered.samples > 0
    assert gathered.remark == await worker.died == reason
    return gathered


def test_killed_at_any_moment_it_leaves_whole_microbatches_and_what_is_held(workers, shared, monkeypatch):
    manifest, arena, worker, weights = shared.manifest, shared.arena, shared.worker, shared.weights
    newer, moments = workers.new_weights(manifest, 1), random.Random(0)

    async def scenario():
        await workers.show(worker, arena, 40, weights)
        worker.begin(epoch=40, quota=9, first_index=0, deadline=None)
        held = await worker.finish()
        workers.assert_is_exactly(arena, held, manifest, weights, 0)
        held_before = content(arena, held)

        worker.begin(epoch=41, quota=10**9, first_index=7, deadline=None)
        waiting = await freeze_after(workers, worker, moments.uniform(0.02, 0.3))
        os.kill(worker.pid, signal.SIGKILL)
        reason = "the worker on cpu was killed, perhaps by the system for lack of memory"
        part = await finish_dead(worker, waiting, reason)
        assert content(arena, held) == held_before
        assert part.stale == part.samples
        workers.assert_is_exactly(arena, part, manifest, weights, 7)
        # Also what is asked of it afterwards ends.
        with pytest.raises(WorkerFailed, match=r"was killed.*; start the peer again"):
            await worker.evaluate()
        async with asyncio.timeout(1):
            worker.refresh(41)
            await worker.refreshed()
        worker.begin(epoch=41, quota=10, first_index=0, deadline=None)
        assert (await worker.finish()).samples == 0

        # Another one goes on with the epoch. Its measuring touches neither sum, its gathering not the one held.
        part_before = content(arena, part)
        async with workers.running(manifest, arena, emulate_throughput=50.0) as another:
            await another.measure()
            assert (content(arena, held), content(arena, part)) == (held_before, part_before)
            await workers.show(another, arena, 41, newer)
            another.begin(epoch=41, quota=10**9, first_index=0, deadline=None)
            # It hangs. As weights cannot change before it has taken them, it is ended.
            monkeypatch.setattr(worker_process, "REFRESH_SECONDS", 0.3)
            waiting = await freeze_after(workers, another, moments.uniform(0.1, 0.5))
            reason = "the worker on cpu did not take new weights in time and was ended"
            part = await finish_dead(another, waiting, reason)
            assert content(arena, held) == held_before
            assert part.stale == 0
            workers.assert_is_exactly(arena, part, manifest, newer, 0)

    shared.run(scenario())
