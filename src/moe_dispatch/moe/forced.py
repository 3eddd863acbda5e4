"""Forced routing of a training step: which logits or choices take the place of the router's own.

The draw of a sequence depends only on (seed, layer, step, number of the sequence in the global batch): it is the same
for every dispatcher and at every EP size. Modes as in workload/routing.py, drawn on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from moe_dispatch.workload.model import ModelShape
from moe_dispatch.workload.routing import RoutingSpec, log_expert_weights
from moe_dispatch.workload.trainable import NATURAL


@dataclass(frozen=True)
class Forced:
    """Logits float32 [T, E] in place of the gate's, or choices int64 [T, K] in place of the top-k of its scores."""

    logits_TE: torch.Tensor | None = None
    ids_TK: torch.Tensor | None = None


class RoutingSource:
    """Draws the forced routing of one model.

    Args:
        routing: text of a `RoutingSpec`, or `natural`.

    Raises:
        WorkloadError: malformed, or a trace of another model.
    """

    def __init__(self, routing: str, shape: ModelShape, *, seed: int, device: torch.device) -> None:
        self._shape, self._seed, self._device = shape, seed, device
        self._spec = None if routing == NATURAL else RoutingSpec.parse(routing)
        self._weights_E: torch.Tensor | None = None
        self._trace = self._spec.load_trace() if self._spec is not None else None
        if self._spec is None:
            return
        sizes = (shape.num_experts, shape.topk)
        if self._trace is not None and self._trace.expert_ids is not None:
            self._trace.replay(1, *sizes, 0)
        elif self._spec.kind == "biased":
            drawn = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
            self._weights_E = self._on_device(self._spec.value * drawn.standard_normal(shape.num_experts))
        elif self._spec.kind != "force_balanced":
            self._weights_E = self._on_device(log_expert_weights(self._spec, *sizes, seed))

    def draw(self, layer: int, step: int, sequences: Sequence[int], length: int) -> Forced | None:
        """The forced routing of one MoE layer for one micro-batch; None for natural routing.

        Args:
            sequences: numbers in the global batch, in the order of the micro-batch; each has `length` tokens.
        """
        if self._spec is None:
            return None
        if self._trace is not None and self._trace.expert_ids is not None:
            parts = [
                self._trace.replay(length, self._shape.num_experts, self._shape.topk, number)[0] for number in sequences
            ]
            return Forced(ids_TK=torch.from_numpy(np.concatenate(parts)).to(self._device))
        logits = torch.cat([self._logits(layer, step, number, length) for number in sequences])
        return Forced(logits_TE=logits if self._weights_E is None else logits + self._weights_E)

    def _logits(self, layer: int, step: int, sequence: int, length: int) -> torch.Tensor:
        assert self._spec is not None
        state = np.random.SeedSequence(self._seed, spawn_key=(3, layer, step, sequence)).generate_state(1, np.uint64)
        generator = torch.Generator(device=self._device).manual_seed(int(state[0]) >> 1)
        drawn = torch.empty(length, self._shape.num_experts, dtype=torch.float32, device=self._device)
        if self._spec.kind in ("force_balanced", "biased"):
            return drawn.normal_(generator=generator)
        tiny = torch.finfo(torch.float32).tiny  # a clock of exactly 0 happens in float32
        return drawn.exponential_(generator=generator).clamp_(min=tiny).log_().neg_()

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(self._device)
