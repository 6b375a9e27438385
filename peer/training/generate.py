"""Text from a trained model, a byte at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import torch

from peer.training.model import Transformer
from peer.training.presets import num_parameters

START = b"\n"
"""what an empty prompt stands for"""
SMALL = 4_000_000
"""parameters of a model below which threads cost more, in waiting for each other, than they bring"""


def generate(
    model: Transformer, prompt: bytes, length: int, *, temperature: float = 0.8, top_k: int = 40, seed: int = 0
) -> Iterator[str]:
    """Yield text that continues `prompt`, `length` bytes of it, in pieces. The same seed gives the same text.

    Each byte is drawn from the `top_k` likeliest, at `temperature`; 0 always takes the likeliest. The model sees the
    last `sequence_length` bytes. What is not UTF-8 becomes U+FFFD.
    """
    generator = torch.Generator().manual_seed(seed)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    window = list((prompt or START)[-model.sequence_length :])
    for _ in range(length):
        byte = _draw(_logits(model, window), temperature, top_k, generator)
        window = [*window, byte][-model.sequence_length :]
        if text := decoder.decode(bytes([byte])):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def _logits(model: Transformer, window: list[int]) -> torch.Tensor:
    threads = torch.get_num_threads()
    if num_parameters(model.shape) < SMALL:
        torch.set_num_threads(1)
    try:
        with torch.no_grad():
            logits: torch.Tensor = model(torch.tensor([window]))[0, -1].float()
    finally:
        torch.set_num_threads(threads)
    return logits


def _draw(logits: torch.Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    likeliest = logits.topk(min(top_k, logits.numel()))
    probabilities = torch.softmax(likeliest.values / temperature, dim=-1)
    chosen = int(torch.multinomial(probabilities, 1, generator=generator))
    return int(likeliest.indices[chosen])
