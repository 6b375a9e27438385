"""What `minga status` shows of a running peer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from protocol.plan import Member, SlowMember
from protocol.units import PeerId

if TYPE_CHECKING:
    from peer.daemon.lifecycle import Daemon


class StatusBoard:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._began = time.monotonic()
        self._activity = "starting"
        self._reason = ""
        self._since = self._began
        self._transfer_seconds: float | None = None

    def activity(self, what: str, reason: str) -> None:
        """State what the peer is doing now, and why."""
        if what != self._activity:
            self._since = time.monotonic()
        self._activity, self._reason = what, reason

    def note_transfer(self, seconds: float) -> None:
        """How long the last exchange of a slow peer took."""
        self._transfer_seconds = seconds

    async def command(self, _request: dict[str, Any]) -> dict[str, Any]:
        daemon = self._daemon
        now = time.monotonic()
        heldout = daemon.roster.heldout
        engine = daemon.epochs
        return {
            "run": daemon.config.run,
            "run_name": daemon.signed.manifest.run.name,
            "peer": daemon.me,
            "name": daemon.own.name,
            "pid": os.getpid(),
            "state_dir": str(daemon.config.state.path),
            "epoch": daemon.replica.epoch,
            "lineage": daemon.replica.lineage.digest,
            "activity": self._activity,
            "activity_seconds": now - self._since,
            "reason": self._reason,
            "term": daemon.council.plan.term,
            "plan_reason": daemon.council.reason,
            "lane": daemon.council.plan.lane_of(daemon.me),
            "lane_reason": daemon.council.reasons.get(daemon.me),
            "compression": daemon.council.plan.compression,
            "heldout_epoch": heldout[0] if heldout else None,
            "heldout_bits_per_byte": heldout[1] if heldout else None,
            "session_samples": daemon.own.total_samples,
            "session_seconds": now - self._began,
            "bytes_sent": engine.bytes_sent,
            "bytes_received": engine.bytes_received + daemon.catchup.bytes_received,
            "last_epoch": engine.last_event.to_json() if engine.last_event else None,
            "slow_transfer_seconds": self._transfer_seconds,
            "round": engine.story(),
            "peers": self._peers(),
        }

    def _peers(self) -> list[dict[str, Any]]:
        """A row for every peer that the plan or a fresh record knows."""
        daemon = self._daemon
        roster, plan = daemon.roster, daemon.council.plan
        quotas: dict[PeerId, Member | SlowMember] = {m.peer: m for m in plan.step}
        quotas |= {m.peer: m for m in plan.slow}
        rows = []
        for peer in sorted({*quotas, *roster.progress, daemon.me}):
            progress, presence = roster.progress.get(peer), roster.presences.get(peer)
            member = quotas.get(peer)
            own = peer == daemon.me
            rate = daemon.own.throughput if own else progress.throughput if progress else 0
            state: str = daemon.own.state if own else presence.state if presence else "silent"
            if peer in daemon.replica.absent:
                state = "absent"
            rows.append(
                {
                    "peer": peer,
                    "name": roster.name_of(peer),
                    "throughput": (rate or (member.throughput if member else 0)) / 1000,
                    "quota": member.quota if member else 0,
                    "lane": plan.lane_of(peer),
                    "lane_reason": daemon.council.reasons.get(peer),
                    "samples": daemon.own.total_samples if own else progress.total_samples if progress else 0,
                    "epoch": daemon.replica.epoch if own else progress.epoch if progress else None,
                    "state": state,
                    "devices": daemon.own.devices if own else presence.devices if presence else "",
                }
            )
        return sorted(rows, key=lambda row: (-row["throughput"], row["peer"]))
