"""Router: from token activations to K experts and their weights, in float32.

The order of operations follows Megatron-Core (NVIDIA/Megatron-LM@d98e8a64:megatron/core/transformer/moe/moe_utils.py,
`topk_routing_with_score_function`, `RandomSTE`). Shape legend: T tokens, H hidden, E experts, K top-k, G groups.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.model import RouterShape, check_groups

NORMALIZE_EPSILON = 1e-20
"""Added to the sum of the chosen weights, so that K vanishing sigmoid scores do not divide by zero (as Megatron)."""


class Routing(NamedTuple):
    """Choices of one forward pass.

    Fields:
        expert_ids_TK: int64, best first; -1 only where forced ids say so.
        probs_TK: float32; differentiable.
        aux_loss: float32 scalar, already times its coefficient; differentiable.
    """

    expert_ids_TK: torch.Tensor
    probs_TK: torch.Tensor
    aux_loss: torch.Tensor


class _ReplaceForward(torch.autograd.Function):
    """Forward returns the override, backward hands the gradient to the logits (straight through)."""

    @staticmethod
    def forward(ctx: Any, logits_TE: torch.Tensor, override_TE: torch.Tensor) -> torch.Tensor:
        return override_TE.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class Router(nn.Module):
    """Linear gate with top-k selection.

    Args:
        hidden, num_experts, topk: H, E, K.
        shape: score function, groups, bias, normalisation and scaling.
        aux_loss_coeff: weight of the load-balancing loss; 0 skips it.
        dtype, device: of the gate's weight; its product is taken in float32 whatever the dtype.
        seed: of the initial weight.

    Raises:
        WorkloadError: groups that cannot hold K experts.
    """

    expert_bias_E: torch.Tensor

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        topk: int,
        shape: RouterShape | None = None,
        *,
        aux_loss_coeff: float = 0.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shape = shape or RouterShape()
        check_groups(num_experts, topk, self.shape.num_groups, self.shape.group_topk)
        self.num_experts = num_experts
        self.topk = topk
        self.aux_loss_coeff = aux_loss_coeff
        generator = torch.Generator().manual_seed(seed)
        initial = torch.randn(num_experts, hidden, generator=generator) * hidden**-0.5
        self.weight_EH = nn.Parameter(initial.to(device=device, dtype=dtype))
        self.register_buffer("expert_bias_E", torch.zeros(num_experts, dtype=torch.float32, device=device))

    def forward(
        self,
        x_TH: torch.Tensor,
        logits_override_TE: torch.Tensor | None = None,
        forced_ids_TK: torch.Tensor | None = None,
        replayed_ids_TK: torch.Tensor | None = None,
    ) -> Routing:
        """Route tokens.

        Args:
            x_TH: any floating dtype.
            logits_override_TE: float32 logits that replace the gate's in the forward pass; the gradient still goes to
                the gate. None is natural routing.
            forced_ids_TK: int64 choices of a replayed trace (-1 drops a slot); weights are the scores at those ids.
            replayed_ids_TK: choices that an earlier pass over the same tokens made; weights are computed anew.

        Raises:
            WorkloadError: an override or forced ids of the wrong shape, or both.
        """
        logits_TE = nn.functional.linear(x_TH.float(), self.weight_EH.float())
        if logits_override_TE is not None:
            if forced_ids_TK is not None:
                raise WorkloadError("router: logits_override and forced_ids exclude each other")
            _check_shape("logits_override", logits_override_TE, logits_TE.shape)
            logits_TE = _ReplaceForward.apply(logits_TE, logits_override_TE.float())  # type: ignore[no-untyped-call]
        scores_TE = self._scores(logits_TE)
        if forced_ids_TK is None:
            ids_TK = replayed_ids_TK
            if ids_TK is None:
                ids_TK = self._choose(scores_TE.detach() if self._by_score else logits_TE.detach())
            valid_TK = None
            probs_TK = scores_TE.gather(1, ids_TK)
        else:
            _check_shape("forced_ids", forced_ids_TK, torch.Size((x_TH.shape[0], self.topk)))
            ids_TK = forced_ids_TK.to(torch.int64)
            valid_TK = ids_TK >= 0
            probs_TK = scores_TE.gather(1, ids_TK.clamp(min=0)) * valid_TK
        if self.shape.normalize_topk:
            probs_TK = probs_TK / (probs_TK.sum(dim=1, keepdim=True) + NORMALIZE_EPSILON)
        if self.shape.scaling_factor != 1.0:
            probs_TK = probs_TK * self.shape.scaling_factor
        return Routing(ids_TK, probs_TK, self._aux_loss(scores_TE, ids_TK, valid_TK))

    @torch.no_grad()
    def balance(self, tokens_E: torch.Tensor, rate: float) -> None:
        """Move the selection bias of every expert by `rate` towards the mean load, without an auxiliary loss.

        Args:
            tokens_E: tokens on each expert in the last step, over all ranks
                (NVIDIA/Megatron-LM@d98e8a64:megatron/core/transformer/moe/moe_utils.py, `get_updated_expert_bias`).
        """
        loads_E = tokens_E.to(self.expert_bias_E)
        self.expert_bias_E += torch.sign(loads_E.mean() - loads_E) * rate

    @property
    def _by_score(self) -> bool:
        """Whether selection has to look at scores: without groups and bias the logits give the same order, cheaper and
        without ties where a score saturates."""
        return self.shape.expert_bias or self.shape.num_groups is not None

    def _scores(self, logits_TE: torch.Tensor) -> torch.Tensor:
        if self.shape.score_function == "sigmoid":
            return torch.sigmoid(logits_TE)
        if self.shape.score_function == "sqrtsoftplus":
            return nn.functional.softplus(logits_TE).sqrt()
        return torch.softmax(logits_TE, dim=1)

    @torch.no_grad()
    def _choose(self, ranking_TE: torch.Tensor) -> torch.Tensor:
        if self.shape.expert_bias:
            ranking_TE = ranking_TE + self.expert_bias_E
        groups, kept = self.shape.num_groups, self.shape.group_topk
        if groups is not None and kept is not None:
            grouped_TGe = ranking_TE.view(ranking_TE.shape[0], groups, self.num_experts // groups)
            best = min(max(self.topk // kept, 1), grouped_TGe.shape[2])
            score_TG = grouped_TGe.topk(best, dim=2).values.sum(dim=2)
            chosen_Tg = score_TG.topk(kept, dim=1).indices
            outside_TG = torch.ones_like(score_TG, dtype=torch.bool).scatter_(1, chosen_Tg, False)
            ranking_TE = grouped_TGe.masked_fill(outside_TG.unsqueeze(2), float("-inf")).view_as(ranking_TE)
        return ranking_TE.topk(self.topk, dim=1).indices

    def _aux_loss(self, scores_TE: torch.Tensor, ids_TK: torch.Tensor, valid_TK: torch.Tensor | None) -> torch.Tensor:
        """Switch-style loss over this rank's tokens: coeff * E / (K * T^2) * sum_e count_e * sum_t P_te.

        P is the score normalised over experts and count_e the number of tokens on expert e
        (NVIDIA/Megatron-LM@d98e8a64:megatron/core/transformer/moe/moe_utils.py, `switch_load_balancing_loss_func`).
        """
        tokens = scores_TE.shape[0]
        if self.aux_loss_coeff == 0.0 or tokens == 0:
            return scores_TE.new_zeros(())
        share_TE = scores_TE
        if self.shape.score_function != "softmax":
            share_TE = scores_TE / (scores_TE.sum(dim=1, keepdim=True) + NORMALIZE_EPSILON)
        flat = ids_TK.reshape(-1) if valid_TK is None else ids_TK[valid_TK]
        count_E = torch.bincount(flat, minlength=self.num_experts).to(share_TE.dtype)
        weight = self.aux_loss_coeff * self.num_experts / (self.topk * tokens * tokens)
        return weight * (share_TE.sum(dim=0) * count_E).sum()


def _check_shape(name: str, given: torch.Tensor, wanted: torch.Size) -> None:
    if given.shape != wanted:
        raise WorkloadError(f"router: {name} has shape {tuple(given.shape)}, expected {tuple(wanted)}")
