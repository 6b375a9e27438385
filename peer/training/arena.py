"""Memory that a daemon and its worker share: weights out, gradient sums in.

It is anonymous: an inherited file descriptor is the only way to it, so nothing is left behind however the processes
die. Layout, in float32 numbers: weights (P), then three slots (P each), then, where the run overlaps averaging with
gathering, weights that are predicted (P): 16 bytes a parameter, or 20.

Slots hold sums of gradients. The worker never adds in place: it writes one slot = another + gradient, then says so in
a message, and that message is the commit. A worker killed at any moment has damaged only a slot that was not
committed. Two slots serve an epoch in turn while the third is held: it has the sum of the epoch before, which is being
averaged. Which one that is, the daemon's `Arena` knows, because workers come and go.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile

import numpy as np
import numpy.typing as npt

from peer.errors import NotEnoughMemory
from peer.training.memory import free_bytes, readable
from protocol.units import Epoch

SLOTS = 3
ITEM_SIZE = 4  # bytes of a float32


class Arena:
    """`weights` (P,), `slots` (3, P) and perhaps `ahead` (P,) are views of shared memory; a worker inherits `fd`."""

    def __init__(self, fd: int, num_parameters: int, *, ahead: bool) -> None:
        self.fd = fd
        whole = mmap.mmap(fd, arena_bytes(num_parameters, ahead=ahead))
        vectors = np.frombuffer(whole, dtype=np.float32).reshape(-1, num_parameters)
        self.weights: npt.NDArray[np.float32] = vectors[0]
        self.slots: npt.NDArray[np.float32] = vectors[1 : 1 + SLOTS]
        self.ahead: npt.NDArray[np.float32] | None = vectors[1 + SLOTS] if ahead else None
        self.held = 0
        """the slot with what was handed in for the epoch before the present one"""
        self._epoch: Epoch = -1  # the last for which anything was handed in
        self._slot = 0  # where that is

    @classmethod
    def create(cls, num_parameters: int, *, ahead: bool) -> Arena:
        """New shared memory, all zero; `ahead`: with room for predicted weights. Raises `NotEnoughMemory`."""
        size, free = arena_bytes(num_parameters, ahead=ahead), free_bytes()
        if size > free:
            raise NotEnoughMemory(_no_room(size, free))
        fd = _anonymous_file()
        try:
            os.ftruncate(fd, size)
            _take_pages(fd, size)
            return cls(fd, num_parameters, ahead=ahead)
        except OSError:
            os.close(fd)
            raise NotEnoughMemory(_no_room(size, free)) from None

    @classmethod
    def attach(cls, fd: int, num_parameters: int, *, ahead: bool) -> Arena:
        """The memory behind an inherited descriptor. Raises `ValueError` if it is smaller than it should be."""
        return cls(fd, num_parameters, ahead=ahead)

    def begin(self, epoch: Epoch) -> None:
        """Samples of `epoch` will be gathered, perhaps not for the first time: what another epoch left is held."""
        if epoch != self._epoch:
            self.held = self._slot

    def hand_in(self, epoch: Epoch, slot: int) -> None:
        """`slot` has the sum of what was gathered for `epoch`."""
        self._epoch, self._slot = epoch, slot

    @property
    def spare(self) -> int:
        """A slot whose content nobody needs, between two works."""
        return free_slot(self.held, self._slot)

    def close(self) -> None:
        """Close the descriptor. The memory lives on while views of it do."""
        os.close(self.fd)


def free_slot(held: int, committed: int) -> int:
    """A slot that is neither."""
    return min(set(range(SLOTS)) - {held, committed})


def arena_bytes(num_parameters: int, *, ahead: bool) -> int:
    return (1 + SLOTS + ahead) * num_parameters * ITEM_SIZE


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("minga-arena")
    fd, path = tempfile.mkstemp(prefix="minga-arena-")
    os.unlink(path)  # noqa: PTH108 - at once, so that only the descriptor keeps it
    return fd


def _take_pages(fd: int, size: int) -> None:
    """Take the memory now where the system can: running out later would be a signal, not an error."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def _no_room(size: int, free: int) -> str:
    return (
        f"the model's weights and gradients need {readable(size)} of memory but {readable(free)} are free; "
        "close other programs or join a run with a smaller model"
    )
