"""What a member of the step lane does for slow peers: takes their gradients into its rounds and gives them weights.

A deposit is a sum of gradients over so many samples, gathered with weights a few epochs old. It enters the sponsor's
own sum at the next hand-in, divided by its age in epochs (`peer/policy/staleness.py`), so the round and all its
guarantees stay as they are; it is taken out again if the round goes on without the sponsor. Weights go back as
differences to what the guest has (4 bits, with error feedback: what rounding loses now is part of the next
difference), so a sponsor keeps a copy of each guest's weights: 4 bytes a parameter.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from peer.daemon.replica import Vector
from peer.policy.staleness import weight_of_age
from peer.swarm.stream import Stream
from peer.swarm.vectors import receive_vector, send_vector
from protocol.lanes import SLOW_LANE_CODEC
from protocol.units import Epoch, PeerId

if TYPE_CHECKING:
    from peer.daemon.lifecycle import Daemon
    from protocol.plan import SlowMember

REQUEST_SECONDS = 10.0
LEAST_SIGHTING = 256 * 1024  # bytes; less is mostly buffers on the way
LATE_CYCLES = 64
"""cadences of samples that a deposit may hold, after transfers have failed"""


@dataclass
class Deposit:
    samples: int
    sums: Vector
    epoch: Epoch
    """of the weights it was worked with, the oldest if several"""


@dataclass
class Shadow:
    """What a guest has, as far as we know, and the difference under way to it."""

    version: int
    weights: Vector
    next_version: int = 0
    difference: Vector | None = None


class Sponsor:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._waiting: dict[PeerId, Deposit] = {}
        self._handed: dict[PeerId, Deposit] = {}
        self._last_cycle: dict[PeerId, int] = {}
        self._shadows: dict[PeerId, Shadow] = {}
        self.bytes_sent = self.bytes_received = 0

    async def serve(self) -> None:
        await self._daemon.node.serve("deposit", self._take_deposit)
        await self._daemon.node.serve("weights", self._give_weights)

    def _guest(self, peer: PeerId) -> SlowMember | None:
        return self._daemon.council.plan.slow_member(peer)

    # Into the round.

    def hand_in(self, epoch: Epoch, samples: int, sums: Vector | None) -> tuple[int, Vector | None]:
        """This peer's own sum for `epoch` with what is waiting, by its age. `sums` is not written to."""
        self._handed, self._waiting = self._waiting, {}
        for deposit in self._handed.values():
            samples += deposit.samples
            by_age = deposit.sums * np.float32(weight_of_age(epoch - deposit.epoch))
            sums = by_age if sums is None else sums + by_age
        return samples, sums

    def settle(self, *, merged: bool) -> dict[PeerId, int]:
        """The round has ended; samples of guests that entered it. What did not waits for the next one."""
        handed, self._handed = self._handed, {}
        if merged:
            return {peer: deposit.samples for peer, deposit in handed.items()}
        for peer, deposit in handed.items():
            self._wait(peer, deposit)
        return {}

    def _wait(self, peer: PeerId, deposit: Deposit) -> None:
        known = self._waiting.get(peer)
        if known is not None:
            epoch = min(known.epoch, deposit.epoch)
            deposit = Deposit(known.samples + deposit.samples, known.sums + deposit.sums, epoch)
        self._waiting[peer] = deposit

    async def _take_deposit(self, peer: PeerId, stream: Stream) -> None:
        header, _ = await stream.receive(0, REQUEST_SECONDS)
        refusal = self._refusal(peer, header)
        answer = {"refused": refusal} if refusal else {"go": True}
        await stream.send({**answer, "taken": self._last_cycle.get(peer)}, timeout=REQUEST_SECONDS)
        if refusal:
            return
        received = await receive_vector(stream, self._daemon.replica.num_parameters, SLOW_LANE_CODEC)
        self.bytes_received += stream.bytes_received
        if received.rate:
            self._daemon.links.saw_up(peer, received.rate, time.monotonic())
        if header["cycle"] > self._last_cycle.get(peer, -1):  # else another stream of the same cycle was quicker
            self._last_cycle[peer] = header["cycle"]
            self._wait(peer, Deposit(header["samples"], received.vector, header["epoch"]))
        await stream.send({"taken": header["cycle"]}, timeout=REQUEST_SECONDS)

    def _refusal(self, peer: PeerId, header: dict[str, object]) -> str:
        guest = self._guest(peer)
        samples, cycle, epoch = header.get("samples"), header.get("cycle"), header.get("epoch")
        if guest is None or self._daemon.me not in guest.sponsors:
            return "this peer is not its sponsor in the present plan"
        if not self._daemon.membership.in_step or self._daemon.me in self._daemon.replica.absent:
            return "this peer is not in step with the others just now"
        if type(samples) is not int or type(cycle) is not int or type(epoch) is not int:
            return "samples, cycle and epoch must be numbers"
        if not 0 < samples <= LATE_CYCLES * guest.quota * guest.cadence + guest.quota:
            return f"{samples} samples are more than the plan asks for"
        if cycle <= self._last_cycle.get(peer, -1):
            return "this cycle was taken before"
        return ""

    # Back to the guest.

    async def _give_weights(self, peer: PeerId, stream: Stream) -> None:
        header, _ = await stream.receive(0, REQUEST_SECONDS)
        if self._guest(peer) is None:
            await stream.send({"refused": "this peer is not in the slow lane"}, timeout=REQUEST_SECONDS)
            return
        shadow = self._shadow_at(peer, header.get("have"))
        epoch, weights = await self._daemon.replica.copy_weights()
        version = secrets.randbits(48)
        answer = {"epoch": epoch, "version": version, "full": shadow is None}
        await stream.send(answer, timeout=REQUEST_SECONDS)
        began = time.monotonic()
        if shadow is None:
            sent = await send_vector(stream, weights, "float16")
            self._shadows[peer] = Shadow(version, sent)
        else:
            shadow.difference = await send_vector(stream, weights - shadow.weights, SLOW_LANE_CODEC)
            shadow.next_version = version
        confirmed, _ = await stream.receive(0, REQUEST_SECONDS)
        if confirmed.get("have") == version and stream.bytes_sent >= LEAST_SIGHTING:
            self._daemon.links.saw_down(peer, stream.bytes_sent / (time.monotonic() - began), time.monotonic())
        await stream.send({"done": True}, timeout=REQUEST_SECONDS)
        self.bytes_sent += stream.bytes_sent

    def _shadow_at(self, peer: PeerId, version: object) -> Shadow | None:
        """The copy of what the guest says it has; None if we do not know that."""
        shadow = self._shadows.get(peer)
        if shadow is not None and shadow.difference is not None and shadow.next_version == version:
            shadow.weights += shadow.difference
            shadow.version = shadow.next_version
        if shadow is None or shadow.version != version:
            self._shadows.pop(peer, None)
            return None
        shadow.difference = None
        return shadow

    def forget_strangers(self) -> None:
        """Free the copies of those who are no longer in the slow lane."""
        guests = {guest.peer for guest in self._daemon.council.plan.slow}
        for peer in set(self._shadows) - guests:
            del self._shadows[peer]
