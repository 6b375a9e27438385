"""One device of this machine: whether it is there, its memory, its precision, and the way to and from it."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from peer.errors import WorkerFailed
from peer.training.memory import free_bytes, peak_bytes


class Device:
    """Named as torch does: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` is a GPU if there is one, else the CPU.

    Raises `WorkerFailed` if it is not there.
    """

    def __init__(self, name: str) -> None:
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        try:
            self.torch = torch.device(name)
        except RuntimeError:
            raise WorkerFailed(f"{name!r} is not a device; use auto, cpu, cuda, cuda:1 or mps") from None
        self.is_cuda = self.torch.type == "cuda"
        _refuse_missing(self.torch)
        if self.is_cuda:
            torch.cuda.set_device(self.torch)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Forward passes in bfloat16 where the device has it; parameters and gradients stay float32."""
        if self.is_cuda and torch.cuda.is_bf16_supported():
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def staging(self, size: int) -> Tensor | None:
        """Page-locked main memory of `size` float32 numbers, which CUDA copies from and to at full speed."""
        return torch.empty(size, dtype=torch.float32, pin_memory=True) if self.is_cuda else None

    def free_bytes(self) -> int:
        """Memory that more activations could take."""
        if not self.is_cuda:
            return free_bytes()
        free, _total = torch.cuda.mem_get_info(self.torch)
        unused = torch.cuda.memory_reserved(self.torch) - torch.cuda.memory_allocated(self.torch)
        return int(free + unused)

    def peak_bytes(self) -> int:
        """The most memory this process has held there at once."""
        return int(torch.cuda.max_memory_allocated(self.torch)) if self.is_cuda else peak_bytes()

    def synchronize(self) -> None:
        """Wait until the device has done what it was given, so that a clock can be read."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)
        elif self.torch.type == "mps":
            torch.mps.synchronize()

    def release(self) -> None:
        """Give memory back that torch only keeps for later."""
        if self.is_cuda:
            torch.cuda.empty_cache()
        elif self.torch.type == "mps":
            torch.mps.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on any kind of device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("allocate memory", "out of memory", "not enough memory")
    )


def _refuse_missing(device: torch.device) -> None:
    match device.type:
        case "cpu":
            return
        case "cuda":
            if not torch.cuda.is_available():
                built = torch.version.cuda or getattr(torch.version, "hip", None)
                why = "no usable GPU or driver was found" if built else "this torch was built for the CPU only"
                raise WorkerFailed(f"CUDA is not available ({why}); install a matching torch or use --device cpu")
            count = torch.cuda.device_count()
            if (device.index or 0) >= count:
                raise WorkerFailed(
                    f"there is no device {device}: this machine has {count} CUDA devices, the first is cuda:0; "
                    "choose another with --device"
                )
        case "mps":
            if not torch.backends.mps.is_available():
                raise WorkerFailed("MPS is not available here (it needs a Mac with Apple silicon); use --device cpu")
        case other:
            raise WorkerFailed(f"devices of type {other!r} are not supported; use auto, cpu, cuda, cuda:1 or mps")
