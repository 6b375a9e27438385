"""What can go wrong between this peer and the network.

SwarmError
├── IdentityDamaged     the key file cannot be used
├── EngineFailed        the libp2p daemon does not start, or has ended
├── PortInUse
├── NobodyAnswers       none of the given addresses leads into the run
├── ClockDiffers
├── PeerUnreachable     no stream to a peer can be opened
├── StreamFailed        an open stream: PeerGone, PeerSilent, PeerMisbehaves
├── RoundFailed         an all-reduce, with those to blame
└── StateUnavailable    catch-up: nobody gives the state; SpoolFailed: there is no room for it
"""

from __future__ import annotations

from peer.errors import PeerError
from protocol.units import PeerId


class SwarmError(PeerError):
    """Base of all errors of the network."""


class IdentityDamaged(SwarmError):
    """The file with this peer's secret key cannot be used."""


class EngineFailed(SwarmError):
    """The libp2p daemon could not be started, or has ended."""


class PortInUse(SwarmError):
    """Another program listens where this peer wants to."""


class NobodyAnswers(SwarmError):
    """No peer of the run answers at any of the addresses given."""


class ClockDiffers(SwarmError):
    """This machine's clock is too far from the other peers' clocks."""


class PeerUnreachable(SwarmError):
    """No stream to a peer could be opened."""

    def __init__(self, peer: PeerId, reason: str) -> None:
        super().__init__(f"peer {short(peer)} cannot be reached: {reason}")
        self.peer = peer


class StreamFailed(SwarmError):
    """An open stream is of no use any more."""

    def __init__(self, peer: PeerId, reason: str) -> None:
        super().__init__(f"peer {short(peer)} {reason}")
        self.peer = peer


class PeerGone(StreamFailed):
    """The other side has closed the stream, or its connection is lost."""


class PeerSilent(StreamFailed):
    """The other side neither sends nor reads within the time limit."""


class PeerMisbehaves(StreamFailed):
    """The other side sends what the protocol does not allow."""


class RoundFailed(SwarmError):
    """An all-reduce came to nothing."""

    def __init__(
        self, blamed: tuple[PeerId, ...], reason: str, reported_by: PeerId | None = None, *, is_pace: bool = False
    ) -> None:
        super().__init__(reason)
        self.blamed = blamed
        """peers without whom it might have succeeded; empty if nobody in particular"""
        self.reason = reason
        self.reported_by = reported_by
        """the member that told us; None: seen by ourselves"""
        self.is_pace = is_pace
        """nothing is broken, but those to blame are too slow"""


class StateUnavailable(SwarmError):
    """No peer gives the state that was asked for."""


class SpoolFailed(SwarmError):
    """What is being fetched cannot be kept on this machine's disk."""


def short(peer: PeerId) -> str:
    """A peer id for people: its last eight characters, since all begin alike."""
    return f"…{peer[-8:]}"
