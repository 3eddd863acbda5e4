"""Causal self-attention around `scaled_dot_product_attention`: grouped-query and multi-latent.

Sizes are those that the step FLOP formula prices (workload/flops.py). Multi-latent attention follows DeepSeek-V2
(arXiv:2405.04434): queries and keys have a part without position and a rotated part, whose key is shared by the heads.
Shape legend: B sequences, S positions, H hidden, N heads, G key-value heads, D head width.
"""

from __future__ import annotations

import torch
from torch import nn

from moe_dispatch.moe.norm import RMSNorm
from moe_dispatch.moe.rope import Rotary
from moe_dispatch.moe.weights import replicated_weight
from moe_dispatch.workload.model import MlaShape, ModelShape

_SALT = 16


class _Projections:
    """Makes the bias-free projections of one attention layer, each with weights of its own."""

    def __init__(self, dtype: torch.dtype, device: torch.device | str, seed: int) -> None:
        self.dtype, self.device, self.seed = dtype, device, seed
        self._made = 0

    def __call__(self, inputs: int, outputs: int) -> nn.Parameter:
        self._made += 1
        return replicated_weight(
            inputs, outputs, dtype=self.dtype, device=self.device, seed=self.seed, salt=_SALT + self._made
        )


class GroupedQueryAttention(nn.Module):
    """N query heads over G key-value heads. Weights [H, N*D], [H, G*D] twice, and [N*D, H]."""

    def __init__(
        self,
        shape: ModelShape,
        *,
        positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
        seed: int,
    ) -> None:
        super().__init__()
        heads, groups, width = shape.num_attention_heads or 0, shape.num_query_groups or 0, shape.kv_channels or 0
        self.heads, self.groups, self.width = heads, groups, width
        make = _Projections(dtype, device, seed)
        self.query_HQ = make(shape.hidden, heads * width)
        self.key_HK = make(shape.hidden, groups * width)
        self.value_HK = make(shape.hidden, groups * width)
        self.out_QH = make(heads * width, shape.hidden)
        self.rotary = Rotary(width, positions, device)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """x_BSH to [B, S, H], same dtype; differentiable."""
        batch, length, _ = x_BSH.shape
        query = self.rotary((x_BSH @ self.query_HQ).view(batch, length, self.heads, self.width))
        key = self.rotary((x_BSH @ self.key_HK).view(batch, length, self.groups, self.width))
        value = (x_BSH @ self.value_HK).view(batch, length, self.groups, self.width)
        return _attend(query, key, value) @ self.out_QH


class LatentAttention(nn.Module):
    """Multi-latent attention: keys and values are expanded from one compressed row, queries too where `q_lora_rank`
    says so.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
        seed: int,
    ) -> None:
        super().__init__()
        assert shape.mla is not None
        self.heads, self.sizes = shape.num_attention_heads or 0, shape.mla
        mla: MlaShape = shape.mla
        head = mla.qk_head_dim + mla.qk_pos_emb_head_dim
        make = _Projections(dtype, device, seed)
        self.query_down: nn.Parameter | None = None
        if mla.q_lora_rank is not None:
            self.query_down = make(shape.hidden, mla.q_lora_rank)
            self.query_norm = RMSNorm(mla.q_lora_rank, dtype=dtype, device=device)
        self.query_up = make(mla.q_lora_rank or shape.hidden, self.heads * head)
        self.latent_down = make(shape.hidden, mla.kv_lora_rank + mla.qk_pos_emb_head_dim)
        self.latent_norm = RMSNorm(mla.kv_lora_rank, dtype=dtype, device=device)
        self.latent_up = make(mla.kv_lora_rank, self.heads * (mla.qk_head_dim + mla.v_head_dim))
        self.out = make(self.heads * mla.v_head_dim, shape.hidden)
        self.rotary = Rotary(mla.qk_pos_emb_head_dim, positions, device)

    def forward(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """x_BSH to [B, S, H], same dtype; differentiable."""
        batch, length, _ = x_BSH.shape
        mla = self.sizes
        compressed = x_BSH if self.query_down is None else self.query_norm(x_BSH @ self.query_down)
        query = (compressed @ self.query_up).view(batch, length, self.heads, -1)
        plain_query, turned_query = query.split((mla.qk_head_dim, mla.qk_pos_emb_head_dim), dim=-1)
        latent, turned_key = (x_BSH @ self.latent_down).split((mla.kv_lora_rank, mla.qk_pos_emb_head_dim), dim=-1)
        expanded = (self.latent_norm(latent) @ self.latent_up).view(batch, length, self.heads, -1)
        plain_key, value = expanded.split((mla.qk_head_dim, mla.v_head_dim), dim=-1)
        shared_key = self.rotary(turned_key.unsqueeze(2)).expand(-1, -1, self.heads, -1)
        query = torch.cat((plain_query, self.rotary(turned_query)), dim=-1)
        return _attend(query, torch.cat((plain_key, shared_key), dim=-1), value) @ self.out


def make_attention(
    shape: ModelShape, *, positions: int, dtype: torch.dtype, device: torch.device | str, seed: int
) -> nn.Module:
    """The attention of a shape that `check_trainable` passed."""
    kind = LatentAttention if shape.attention == "mla" else GroupedQueryAttention
    return kind(shape, positions=positions, dtype=dtype, device=device, seed=seed)


def _attend(query_BSND: torch.Tensor, key_BSGD: torch.Tensor, value_BSGD: torch.Tensor) -> torch.Tensor:
    """Causal attention; [B, S, N * width of a value]."""
    out_BNSD = nn.functional.scaled_dot_product_attention(
        query_BSND.transpose(1, 2),
        key_BSGD.transpose(1, 2),
        value_BSGD.transpose(1, 2),
        is_causal=True,
        enable_gqa=query_BSND.shape[2] != key_BSGD.shape[2],
    )
    return out_BNSD.transpose(1, 2).flatten(2)
