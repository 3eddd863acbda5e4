"""AdamW on float32 master weights, with the global gradient norm and skipped steps of a mixed-precision training.

A bfloat16 weight loses updates smaller than 1/256 of itself, so the optimizer keeps and moves a float32 copy, as
Megatron-Core's mixed-precision optimizer does. Bytes for each bfloat16 parameter: 2 + 2 (weight, gradient), 4 + 4
(master, its gradient), 8 (moments).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moe_dispatch.moe.model import LanguageModel
from moe_dispatch.moe.parallel import Groups, sum_over

BYTES_PER_PARAMETER = 20


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Constant learning rate; betas, decay and clipping as in Megatron's GPT recipes."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0


class MasterAdamW:
    """Optimizer of one rank's parameters; `step` is collective over all ranks."""

    def __init__(self, model: LanguageModel, groups: Groups, options: OptimizerOptions | None = None) -> None:
        self._options = options or OptimizerOptions()
        self._groups = groups
        self._experts = list(model.expert_parameters())
        self._replicated = list(model.replicated_parameters())
        self._parameters = [*self._replicated, *self._experts]
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        # A float32 parameter is its own master.
        self._masters = [
            parameter if parameter.dtype == torch.float32 else torch.nn.Parameter(parameter.detach().float())
            for parameter in self._parameters
        ]
        self._adam = torch.optim.AdamW(
            self._masters,
            lr=self._options.learning_rate,
            betas=self._options.betas,
            weight_decay=self._options.weight_decay,
        )

    def zero(self) -> None:
        """Clear the gradients in place, so that accumulation in place finds them."""
        for parameter in self._parameters:
            assert parameter.grad is not None
            parameter.grad.zero_()

    def reduce(self) -> list[torch.Tensor]:
        """Sum the gradients over ranks, in float32; collective. Returns them, replicated parameters first."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                assert parameter.grad is not None
                if master.grad is None:
                    master.grad = torch.empty_like(master)
                master.grad.copy_(parameter.grad)
        gradients = [master.grad for master in self._masters if master.grad is not None]
        count = len(self._replicated)
        sum_over(self._groups.world, gradients[:count])
        sum_over(self._groups.replicas, gradients[count:])
        return gradients

    @torch.no_grad()
    def step(self) -> tuple[float, bool]:
        """Reduce, clip and update; collective.

        Returns:
            (global gradient norm before clipping, whether weights were updated). A norm that is not finite skips the
            update on every rank.
        """
        gradients = self.reduce()
        norm = self._norm(gradients)
        if not torch.isfinite(norm):
            return float(norm), False
        factor = self._options.clip / (norm + 1e-6)
        if factor < 1:
            torch._foreach_mul_(gradients, factor)
        self._adam.step()
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
        return float(norm), True

    def _norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Every expert counts once: squares of a rank's experts are summed over its EP group."""
        squares = torch.stack([gradient.double().square().sum() for gradient in gradients])
        count = len(self._replicated)
        experts = squares[count:].sum().float().reshape(1)
        sum_over(self._groups.expert, [experts])
        return (squares[:count].sum().float() + experts[0]).sqrt()
