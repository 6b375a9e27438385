from __future__ import annotations

import pytest
import torch

from peer.errors import WorkerFailed
from peer.training.device import Device, is_out_of_memory


def test_auto_is_a_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert str(Device("auto").torch) == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert str(Device("auto").torch) == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    assert str(Device("auto").torch) == "cuda"
    assert str(Device("cpu").torch) == "cpu"


def test_device_that_is_not_there():
    for name, says in (
        ("gpu0", r"^'gpu0' is not a device; use auto, cpu, cuda, cuda:1 or mps$"),
        ("meta", r"^devices of type 'meta' are not supported; use auto, cpu, cuda, cuda:1 or mps$"),
        ("cuda:99", "--device"),
    ):
        with pytest.raises(WorkerFailed, match=says):
            Device(name)


def test_number_of_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(WorkerFailed, match="no device cuda:2: this machine has 2 CUDA devices, the first is cuda:0; "):
        Device("cuda:2")


def test_memory_that_runs_out_is_told_from_other_errors():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory"))
