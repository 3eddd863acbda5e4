"""One training step over micro-batches: forward, backward, gradients over ranks, update, balancing.

A rank takes consecutive sequences of the global batch, so the batch and its forced routing are the same at every EP
size. Shape legend: B sequences of a micro-batch, S positions, E experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from moe_dispatch.core.errors import UsageError
from moe_dispatch.moe.data import TextBatches
from moe_dispatch.moe.forced import RoutingSource
from moe_dispatch.moe.model import LanguageModel, next_token_loss
from moe_dispatch.moe.optimizer import MasterAdamW
from moe_dispatch.moe.parallel import Groups, sum_over

BIAS_RATE = 1e-3
"""Step of the selection bias, Megatron's default (`moe_router_bias_update_rate`)."""


@dataclass(frozen=True)
class StepResult:
    """One step, the same on every rank.

    Fields:
        loss: mean cross-entropy over the global batch, nats; grad_norm: global, before clipping.
        updated: whether the weights moved.
    """

    loss: float
    grad_norm: float
    updated: bool

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Trainer:
    """Trains one model on one text; every method is collective over all ranks.

    Args:
        seq_length, micro_batch, global_batch: tokens of a sequence; sequences of a micro-batch and of a step.

    Raises:
        UsageError: a global batch that does not divide into micro-batches on the ranks.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: MasterAdamW,
        groups: Groups,
        batches: TextBatches,
        routing: RoutingSource,
        *,
        seq_length: int,
        micro_batch: int,
        global_batch: int,
    ) -> None:
        ranks = dist.get_world_size(groups.world)
        if global_batch % (micro_batch * ranks):
            raise UsageError(
                f"global batch {global_batch} is not a multiple of micro batch {micro_batch} x {ranks} ranks",
                "choose a multiple of their product",
            )
        self.model, self.optimizer, self.groups = model, optimizer, groups
        self._batches, self._routing = batches, routing
        self._length, self._micro, self._ranks = seq_length, micro_batch, ranks
        self._rounds = global_batch // (micro_batch * ranks)
        self._rank = dist.get_rank(groups.world)
        for layer in model.moe_layers:
            layer.experts.accumulate_in_place = True

    def step(self, number: int) -> StepResult:
        """Train on the global batch of this step (from 0)."""
        self.optimizer.zero()
        loss = self.gradients(number)
        sum_over(self.groups.world, [loss])
        norm, updated = self.optimizer.step()
        return StepResult(float(loss), norm, updated)

    def gradients(self, number: int) -> torch.Tensor:
        """Accumulate this rank's gradients of the step; returns its share of the mean loss, float32 [1]."""
        model = self.model
        total = torch.zeros(1, dtype=torch.float32, device=model.head_HV.device)
        loads_LE = [torch.zeros_like(layer.router.expert_bias_E) for layer in model.moe_layers]
        share = 1.0 / (self._ranks * self._rounds)
        for turn in range(self._rounds):
            first = (self._rank * self._rounds + turn) * self._micro
            sequences = range(first, first + self._micro)
            tokens_BS, targets_BS = self._batches.batch(number, sequences)
            forced = [
                self._routing.draw(layer, number, sequences, self._length) for layer in range(len(model.moe_layers))
            ]
            logits_BSV, aux = model(tokens_BS, forced)
            loss = next_token_loss(logits_BSV, targets_BS)
            ((loss + aux) * share).backward()
            total += loss.detach() * share
            for loads_E, layer in zip(loads_LE, model.moe_layers, strict=True):
                _count(layer.last_expert_ids_TK, loads_E)
        self._balance(loads_LE)
        return total

    def _balance(self, loads_LE: list[torch.Tensor]) -> None:
        """Move selection biases where the shape has them."""
        if not loads_LE or not self.model.shape.router.expert_bias:
            return
        sum_over(self.groups.world, loads_LE)
        for layer, loads_E in zip(self.model.moe_layers, loads_LE, strict=True):
            layer.router.balance(loads_E, BIAS_RATE)


def _count(ids_TK: torch.Tensor, loads_E: torch.Tensor) -> None:
    """Add the tokens on each expert; dropped slots (-1) count nowhere."""
    flat = ids_TK.reshape(-1)
    loads_E.scatter_add_(0, flat.clamp(min=0), (flat >= 0).to(loads_E.dtype))
