"""Finding the way into a swarm: one live address out of several is enough."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peer.swarm import engine
from peer.swarm.errors import ClockDiffers, NobodyAnswers, PeerUnreachable, short
from protocol.errors import RemoteProtocolError
from protocol.multiaddr import peer_at
from protocol.units import PeerId

JOIN_SECONDS = 10.0  # for anybody to answer
LINGER_SECONDS = 1.0  # for others to answer too, once one has
SHOWN_ADDRESSES = 4

Addresses = Mapping[PeerId, Sequence[str]]


def group_by_peer(addresses: Sequence[str]) -> dict[PeerId, list[str]]:
    """Full addresses by the peer that they lead to. Raises `NobodyAnswers` for what is no address."""
    grouped: dict[PeerId, list[str]] = {}
    for address in addresses:
        try:
            grouped.setdefault(peer_at(address), []).append(address)
        except RemoteProtocolError as error:
            raise NobodyAnswers(f"{error}; ask a peer of the run for a new invite") from None
    return grouped


async def join(dht: Any, control: Path, known: Addresses) -> None:
    """Connect to as many of the known peers as answer.

    Raises `NobodyAnswers`, naming the addresses and why, or `ClockDiffers`.
    """
    knocking = {asyncio.create_task(_knock(dht, control, peer, known[peer])): peer for peer in known}
    try:
        await _first_success(set(knocking))
        met = [task for task in knocking if _succeeded(task)]
        if not met:
            raise _nobody(known, {peer: _reason(task) for task, peer in knocking.items()}, set(knocking))
        if len(met) < len(knocking):
            await asyncio.wait(knocking, timeout=LINGER_SECONDS)
    finally:
        for task in knocking:
            task.cancel()
        await asyncio.gather(*knocking, return_exceptions=True)


async def _knock(dht: Any, control: Path, peer: PeerId, addresses: Sequence[str]) -> None:
    await engine.dial(control, peer, addresses, JOIN_SECONDS)
    if not await engine.meet(dht, peer):
        raise PeerUnreachable(peer, "it does not take part in this run")


async def _first_success(tasks: set[asyncio.Task[None]]) -> None:
    deadline = asyncio.get_running_loop().time() + JOIN_SECONDS
    pending = tasks
    while pending and not any(map(_succeeded, tasks)):
        left = deadline - asyncio.get_running_loop().time()
        done, pending = await asyncio.wait(pending, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return


def _succeeded(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _reason(task: asyncio.Task[None]) -> str:
    error = task.exception() if task.done() else None
    return str(error).partition(": ")[2] or str(error) if error else "no answer"


def _nobody(
    known: Addresses, reasons: Mapping[PeerId, str], tasks: set[asyncio.Task[None]]
) -> ClockDiffers | NobodyAnswers:
    for task in tasks:
        error = task.exception() if task.done() else None
        if isinstance(error, ClockDiffers):
            return error
    lines = [
        f"{address.rpartition('/p2p/')[0]} ({short(peer)}: {reasons[peer]})"
        for peer, addresses in known.items()
        for address in addresses
    ]
    others = f" and {len(lines) - SHOWN_ADDRESSES} more" if len(lines) > SHOWN_ADDRESSES else ""
    return NobodyAnswers(
        f"no peer of the run answers at {', '.join(lines[:SHOWN_ADDRESSES])}{others}; "
        "check your connection, or ask a running peer for a new invite"
    )


def preferred(addresses: Sequence[str]) -> list[str]:
    """Those that other peers understand, once each: public, private, loopback; TCP before QUIC; relayed last."""
    return sorted(filter(_is_understood, dict.fromkeys(addresses)), key=_rank)


def _is_understood(address: str) -> bool:
    try:
        peer_at(address)
    except RemoteProtocolError:
        return False
    return True


def _rank(address: str) -> tuple[bool, int, bool]:
    parts = address.split("/")
    reach = 0
    with contextlib.suppress(ValueError, IndexError):
        ip = ipaddress.ip_address(parts[2])
        reach = 3 if ip.is_link_local else 2 if ip.is_loopback else 0 if ip.is_global else 1
    return "p2p-circuit" in parts, reach, "quic-v1" in parts
