"""MoELayer: router, dispatch, experts and combine around one dispatcher, the smallest real layer a verdict rests on.

Shape legend: T tokens of this rank, H hidden, W dispatch width (the latent size where there is one), K top-k, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.moe.activation import weighted_activation
from moe_dispatch.moe.experts import GroupedExperts
from moe_dispatch.moe.router import Router
from moe_dispatch.moe.weights import SHARED_EXPERT, fill_weights
from moe_dispatch.workload.model import Activation, ModelShape


@dataclass
class DispatchLayout:
    """Choices of one forward pass, int64 [T, K], kept so that its recomputation replays them; None before it ran."""

    expert_ids_TK: torch.Tensor | None = None


class SharedExpert(nn.Module):
    """The expert that every token passes, on its own rank. Weights [H, P] and [F, H] as in `GroupedExperts`."""

    def __init__(
        self,
        hidden: int,
        ffn_hidden: int,
        *,
        activation: Activation,
        dtype: torch.dtype,
        device: torch.device | str,
        seed: int,
    ) -> None:
        super().__init__()
        self.activation = activation
        inner = 2 * ffn_hidden if activation == "swiglu" else ffn_hidden
        self.w1_HP = nn.Parameter(torch.empty(hidden, inner, dtype=dtype, device=device))
        self.w2_FH = nn.Parameter(torch.empty(ffn_hidden, hidden, dtype=dtype, device=device))
        fill_weights(self.w1_HP.unsqueeze(0), [SHARED_EXPERT], seed=seed, salt=1, scale=hidden**-0.5)
        fill_weights(self.w2_FH.unsqueeze(0), [SHARED_EXPERT], seed=seed, salt=2, scale=ffn_hidden**-0.5)

    def forward(self, x_TH: torch.Tensor) -> torch.Tensor:
        """x_TH to [T, H], same dtype; differentiable."""
        ones_T = torch.ones(x_TH.shape[0], dtype=torch.float32, device=x_TH.device)
        return weighted_activation(x_TH @ self.w1_HP, ones_T, self.activation) @ self.w2_FH


class MoELayer(nn.Module):
    """One MoE layer of `shape` whose tokens travel through `dispatcher`.

    Args:
        shape: the model; H, E, K, inner widths, router settings.
        dispatcher: built for this shape: its hidden is `shape.dispatch_width`.
        seed: of all weights; the same seed gives the same layer at every EP size.
        aux_loss_coeff: weight of the load-balancing loss.

    The auxiliary loss of the last forward pass is `last_aux_loss`, to be added to the loss by the caller; its choices
    are `last_expert_ids_TK`.

    Raises:
        UsageError: a dispatcher built for other sizes.
    """

    last_aux_loss: torch.Tensor
    last_expert_ids_TK: torch.Tensor

    def __init__(
        self, shape: ModelShape, dispatcher: Dispatcher, *, seed: int = 0, aux_loss_coeff: float = 0.0
    ) -> None:
        super().__init__()
        built = (dispatcher.hidden, dispatcher.num_experts, dispatcher.topk)
        wanted = (shape.dispatch_width, shape.num_experts, shape.topk)
        if built != wanted:
            raise UsageError(
                f"dispatcher {dispatcher.name} has (width, experts, topk) = {built}, {shape.name} needs {wanted}",
                "build the dispatcher from the model's dispatch_width, num_experts and topk",
            )
        self.shape = shape
        self.dispatcher = dispatcher
        dtype, device = dispatcher.dtype, dispatcher.device
        first = dispatcher.rank * dispatcher.local_experts
        self.router = Router(
            shape.hidden,
            shape.num_experts,
            shape.topk,
            shape.router,
            aux_loss_coeff=aux_loss_coeff,
            dtype=dtype,
            device=device,
            seed=seed,
        )
        self.experts = GroupedExperts(
            range(first, first + dispatcher.local_experts),
            shape.dispatch_width,
            shape.moe_ffn_hidden,
            activation=shape.activation,
            dtype=dtype,
            device=device,
            seed=seed,
        )
        self.shared: SharedExpert | None = None
        if shape.shared_expert_ffn_hidden:
            self.shared = SharedExpert(
                shape.hidden,
                shape.shared_expert_ffn_hidden,
                activation=shape.activation,
                dtype=dtype,
                device=device,
                seed=seed,
            )
        self.down_HW: nn.Parameter | None = None
        self.up_WH: nn.Parameter | None = None
        if shape.moe_latent_size:
            self.down_HW = nn.Parameter(torch.empty(shape.hidden, shape.moe_latent_size, dtype=dtype, device=device))
            self.up_WH = nn.Parameter(torch.empty(shape.moe_latent_size, shape.hidden, dtype=dtype, device=device))
            fill_weights(self.down_HW.unsqueeze(0), [SHARED_EXPERT], seed=seed, salt=3, scale=shape.hidden**-0.5)
            fill_weights(self.up_WH.unsqueeze(0), [SHARED_EXPERT], seed=seed, salt=4, scale=shape.moe_latent_size**-0.5)

    def forward(
        self,
        x_TH: torch.Tensor,
        logits_override_TE: torch.Tensor | None = None,
        forced_ids_TK: torch.Tensor | None = None,
        layout: DispatchLayout | None = None,
    ) -> torch.Tensor:
        """Run the layer; collective over the dispatcher's group.

        Args:
            x_TH: payload dtype; T may be 0 and may differ between ranks.
            logits_override_TE, forced_ids_TK: see `Router.forward`; None is natural routing.
            layout: filled by the first pass and replayed by every later one; None routes anew each time.

        Returns:
            out_TH, the weighted sum of the chosen experts, plus the shared expert; no residual is added.
        """
        replayed_TK = None if layout is None else layout.expert_ids_TK
        routing = self.router(x_TH, logits_override_TE, forced_ids_TK, replayed_TK)
        if layout is not None:
            layout.expert_ids_TK = routing.expert_ids_TK
        self.last_aux_loss, self.last_expert_ids_TK = routing.aux_loss, routing.expert_ids_TK
        rows_TW = x_TH if self.down_HW is None else x_TH @ self.down_HW
        received = self.dispatcher.dispatch(rows_TW, routing.expert_ids_TK, routing.probs_TK)
        y_RW = self.experts(received.x_RH, received.probs_R, received.tokens_per_expert_e)
        out = self.dispatcher.combine(y_RW, received.state)
        if self.up_WH is not None:
            out = out @ self.up_WH
        return out if self.shared is None else out + self.shared(x_TH)
