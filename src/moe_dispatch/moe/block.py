"""One decoder block: attention and a feed-forward network (dense, or the MoE layer), each behind a norm and a residual.

Recomputation in the backward pass replays the expert choices of the forward pass: choices that were made anew could
differ by one rounding, and rows would then no longer fit the layout that the backward exchange uses.
Shape legend: B sequences, S positions, T = B*S tokens, H hidden.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.moe.attention import make_attention
from moe_dispatch.moe.forced import Forced
from moe_dispatch.moe.layer import DispatchLayout, MoELayer, SharedExpert
from moe_dispatch.moe.norm import RMSNorm
from moe_dispatch.workload.model import ModelShape

Recompute = Literal["none", "selective", "full"]
"""What the backward pass computes again: nothing, the MoE layers (with their dispatch), or whole blocks."""


class DecoderBlock(nn.Module):
    """x + attention(norm(x)), then y + feed_forward(norm(y)).

    Args:
        dispatcher: of the MoE layer; None makes the feed-forward network dense, of width `shape.ffn_hidden`.
        positions: longest sequence.
        seed: of this block's weights.
    """

    def __init__(
        self,
        shape: ModelShape,
        dispatcher: Dispatcher | None,
        *,
        positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
        seed: int,
        recompute: Recompute,
        aux_loss_coeff: float,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = RMSNorm(shape.hidden, dtype=dtype, device=device)
        self.attention = make_attention(shape, positions=positions, dtype=dtype, device=device, seed=seed)
        self.ffn_norm = RMSNorm(shape.hidden, dtype=dtype, device=device)
        self.moe: MoELayer | None = None
        if dispatcher is not None:
            self.moe = MoELayer(shape, dispatcher, seed=seed, aux_loss_coeff=aux_loss_coeff)
        else:
            assert shape.ffn_hidden is not None, "checked by the model"
            self.dense = SharedExpert(
                shape.hidden, shape.ffn_hidden, activation=shape.activation, dtype=dtype, device=device, seed=seed
            )

    def forward(self, x_BSH: torch.Tensor, forced: Forced | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(out_BSH, auxiliary loss); collective over the dispatcher's group. `forced` as in `moe/forced.py`."""
        layout = DispatchLayout()
        if self.recompute == "full" and torch.is_grad_enabled():
            out: tuple[torch.Tensor, torch.Tensor] = checkpoint(self._block, x_BSH, forced, layout, use_reentrant=False)
            return out
        return self._block(x_BSH, forced, layout)

    def _block(
        self, x_BSH: torch.Tensor, forced: Forced | None, layout: DispatchLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x_BSH = x_BSH + self.attention(self.attention_norm(x_BSH))
        if self.recompute == "selective" and self.moe is not None and torch.is_grad_enabled():
            out_BSH, aux = checkpoint(self._feed_forward, x_BSH, forced, layout, use_reentrant=False)
        else:
            out_BSH, aux = self._feed_forward(x_BSH, forced, layout)
        return x_BSH + out_BSH, aux

    def _feed_forward(
        self, x_BSH: torch.Tensor, forced: Forced | None, layout: DispatchLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows_TH = self.ffn_norm(x_BSH).flatten(0, 1)
        if self.moe is None:
            return self.dense(rows_TH).view_as(x_BSH), rows_TH.new_zeros((), dtype=torch.float32)
        logits, ids = (None, None) if forced is None else (forced.logits_TE, forced.ids_TK)
        out_TH = self.moe(rows_TH, logits, ids, layout)
        return out_TH.view_as(x_BSH), self.moe.last_aux_loss
