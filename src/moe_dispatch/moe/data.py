"""Batches of real text, one token a byte: the shipped poem or the user's file, the same for every arm and EP size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from moe_dispatch.core.errors import WorkloadError


class TextBatches:
    """Sequences cut out of a text; sequence i of step n starts at a place drawn from (seed, n, i) alone.

    Args:
        text: bytes of the text.
        seq_length: tokens of one sequence; a target is the byte that follows.

    Raises:
        WorkloadError: a text that is not longer than one sequence.
    """

    def __init__(self, text: bytes, seq_length: int, *, seed: int, device: torch.device, name: str) -> None:
        if len(text) <= seq_length:
            raise WorkloadError(
                f"text {name} has {len(text)} bytes; a sequence of {seq_length} tokens needs {seq_length + 1}",
                "give a longer text or a smaller --seq-length",
            )
        self._bytes = np.frombuffer(text, dtype=np.uint8)
        self._length, self._seed, self._device = seq_length, seed, device

    def batch(self, step: int, sequences: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens_BS, targets_BS), int64, of these sequences of the global batch of one step."""
        last = len(self._bytes) - self._length
        rows = []
        for number in sequences:
            drawn = np.random.SeedSequence(self._seed, spawn_key=(2, step, number)).generate_state(1, np.uint64)
            start = int(drawn[0] % np.uint64(last))
            rows.append(self._bytes[start : start + self._length + 1])
        cut = torch.from_numpy(np.stack(rows).astype(np.int64)).to(self._device)
        return cut[:, :-1], cut[:, 1:]
