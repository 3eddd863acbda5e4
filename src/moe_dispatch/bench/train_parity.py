"""Parity of a dispatcher: one step from the initial weights against a float32 model that exchanges nothing.

The reference holds all experts on every rank (EP 1), so a fault that alltoall and the arm share is seen too. Its expert
choices are forced on every model under test, because one rounding may turn a choice. A dispatcher may be `PARITY_RATIO`
times as far from the reference as alltoall is in the same precision; alltoall is taken in two orders of its sums, so
that float32, where one order may be exact by chance, has a distance too.

The loss of the first step: cross-entropy changes by at most twice the largest change of a token's logits, so its bound
is 2 x `PARITY_RATIO` x alltoall's mean over tokens of that change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.bench.rank import Rank
from moe_dispatch.bench.steps import DTYPES
from moe_dispatch.bench.train_plan import TrainPlan
from moe_dispatch.dispatch.alltoall import AllToAllDispatcher
from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.evidence.training import PARITY_RATIO, Parity, ParityDistance
from moe_dispatch.moe.data import TextBatches
from moe_dispatch.moe.forced import Forced
from moe_dispatch.moe.model import LanguageModel, ModelOptions, next_token_loss
from moe_dispatch.moe.parallel import make_groups, sum_over
from moe_dispatch.workload.training_text import read_text

PARITY_TOKENS = 256
"""Longest sequence of the check; each rank has one."""


@dataclass(frozen=True)
class _Outcome:
    """One forward and backward pass, float32 on the CPU; gradients are those of the mean over all ranks.

    Fields:
        experts: gradients of this rank's experts; replicated: of everything else.
    """

    logits_SV: torch.Tensor
    loss: float
    experts: tuple[torch.Tensor, ...]
    replicated: tuple[torch.Tensor, ...]


class ParityCheck:
    """The reference of one launch. Construction and `of` are collective over all ranks."""

    def __init__(self, plan: BenchPlan, train: TrainPlan, rank: Rank) -> None:
        self._plan, self._rank = plan, rank
        self._length = min(train.seq_length, PARITY_TOKENS)
        text, name = read_text(train.text)
        batches = TextBatches(text, self._length, seed=plan.seed, device=rank.device, name=name)
        self._tokens_BS, self._targets_BS = batches.batch(0, (rank.rank,))
        self._choices: list[torch.Tensor] = []
        self._reference = self._run_reference()
        baseline = self._alltoall(rank.group, DTYPES[plan.dtype])
        orders = [self._run(baseline, flipped) for flipped in (False, True)]
        baseline.close()
        distances = [self._distances(order) for order in orders]
        self._allowed = {name: max(one[name] for one in distances) for name in distances[0]}
        self._loss_bound = 2 * PARITY_RATIO * max(self._mean_change(order) for order in orders)

    def of(self, dispatcher: Dispatcher) -> Parity:
        """Hold one step through this dispatcher against the reference."""
        outcome = self._run(dispatcher, False)
        distances = {
            name: ParityDistance(
                distance=distance if math.isfinite(distance) else None,
                baseline=self._allowed[name],
                allowed=PARITY_RATIO * self._allowed[name],
            )
            for name, distance in self._distances(outcome).items()
        }
        return Parity(
            distances=distances,
            step0_loss=outcome.loss if math.isfinite(outcome.loss) else None,
            reference_loss=self._reference.loss,
            loss_bound=self._loss_bound,
            tokens=self._length,
        )

    def _alltoall(self, group: dist.ProcessGroup, dtype: torch.dtype) -> AllToAllDispatcher:
        shape = self._plan.model
        return AllToAllDispatcher(
            group, shape.num_experts, shape.dispatch_width, shape.topk, self._length, dtype, self._rank.device
        )

    def _model(self, dispatcher: Dispatcher) -> LanguageModel:
        return LanguageModel(self._plan.model, dispatcher, ModelOptions(positions=self._length, seed=self._plan.seed))

    def _run_reference(self) -> _Outcome:
        """All experts on this rank, float32, weights as rounded for the arms, natural routing."""
        alone = make_groups(self._rank.group, 1)
        exchange = self._alltoall(alone.expert, torch.float32)
        model = self._model(exchange)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(DTYPES[self._plan.dtype]))
        logits_SV, loss = self._pass(model, None)
        self._choices = [layer.last_expert_ids_TK for layer in model.moe_layers]
        experts = [_gradient(p) for p in model.expert_parameters()]
        sum_over(self._rank.group, experts)
        per_rank = self._plan.model.num_experts // self._rank.world
        mine = slice(self._rank.rank * per_rank, (self._rank.rank + 1) * per_rank)
        outcome = self._outcome(model, logits_SV, loss, [gradient[mine] for gradient in experts])
        exchange.close()
        return outcome

    def _run(self, dispatcher: Dispatcher, flipped: bool) -> _Outcome:
        """One step of a fresh model through the dispatcher with the reference's choices, in reverse order if asked."""
        model = self._model(dispatcher)
        ids = [choice.flip(1) if flipped else choice for choice in self._choices]
        logits_SV, loss = self._pass(model, [Forced(ids_TK=chosen) for chosen in ids])
        return self._outcome(model, logits_SV, loss, [_gradient(p) for p in model.expert_parameters()])

    def _pass(self, model: LanguageModel, forced: Sequence[Forced] | None) -> tuple[torch.Tensor, torch.Tensor]:
        logits_BSV, _ = model(self._tokens_BS, forced)
        loss = next_token_loss(logits_BSV, self._targets_BS) / self._rank.world
        loss.backward()
        return logits_BSV.detach()[0].float(), loss.detach()

    def _outcome(
        self, model: LanguageModel, logits_SV: torch.Tensor, loss: torch.Tensor, experts: Sequence[torch.Tensor]
    ) -> _Outcome:
        replicated = [_gradient(p) for p in model.replicated_parameters()]
        total = loss.reshape(1).clone()
        sum_over(self._rank.group, [*replicated, total])
        return _Outcome(
            logits_SV.cpu(), float(total), tuple(g.cpu() for g in experts), tuple(g.cpu() for g in replicated)
        )

    def _distances(self, outcome: _Outcome) -> dict[str, float]:
        """Relative distances over all ranks, the same on each."""
        wanted = self._reference
        pairs = {
            "logits": ((outcome.logits_SV,), (wanted.logits_SV,)),
            "expert_gradients": (outcome.experts, wanted.experts),
            "replicated_gradients": (outcome.replicated, wanted.replicated),
        }
        squares = {
            name: (
                sum(float((a - b).double().square().sum()) for a, b in zip(got, base, strict=True)),
                sum(float(b.double().square().sum()) for b in base),
            )
            for name, (got, base) in pairs.items()
        }
        everyone = self._rank.gather(squares)
        return {
            name: (sum(one[name][0] for one in everyone) / sum(one[name][1] for one in everyone)) ** 0.5
            for name in squares
        }

    def _mean_change(self, outcome: _Outcome) -> float:
        """Mean over all tokens of the largest change of a logit."""
        change = float((outcome.logits_SV - self._reference.logits_SV).abs().amax(dim=1).double().mean())
        return sum(self._rank.gather(change)) / self._rank.world


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A float32 copy of its gradient, zero where no token came by."""
    if parameter.grad is None:
        return torch.zeros_like(parameter, dtype=torch.float32)
    return parameter.grad.float()
