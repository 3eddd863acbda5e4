"""A decoder-only MoE language model around one dispatcher: real, small enough to train anywhere, the same at every EP.

Blocks before the first MoE layer are dense (models that interleave them are built with the dense ones first: the step
costs the same). Multi-token prediction is left out. Weights depend only on (seed, layer, expert).
Shape legend: B sequences, S positions, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.moe.block import DecoderBlock, Recompute
from moe_dispatch.moe.forced import Forced
from moe_dispatch.moe.layer import MoELayer
from moe_dispatch.moe.norm import RMSNorm
from moe_dispatch.moe.weights import SHARED_EXPERT, fill_weights, replicated_weight
from moe_dispatch.workload.model import ModelShape
from moe_dispatch.workload.trainable import check_trainable

_EMBEDDING_SALT, _HEAD_SALT = 8, 9


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What a shape leaves open.

    Fields:
        positions: longest sequence.
        aux_loss_coeff: weight of the load-balancing loss.
    """

    positions: int
    seed: int = 0
    recompute: Recompute = "none"
    aux_loss_coeff: float = 0.0


class LanguageModel(nn.Module):
    """Embedding, decoder blocks, norm, output matrix [H, V].

    Args:
        dispatcher: of all MoE layers; its dtype and device are those of the model.

    Raises:
        WorkloadError: sizes that the shape lacks, or an attention that is not built here.
        UsageError: a dispatcher built for other sizes.
    """

    def __init__(self, shape: ModelShape, dispatcher: Dispatcher, options: ModelOptions) -> None:
        super().__init__()
        check_trainable(shape)
        assert shape.vocab_size is not None
        self.shape = shape
        dtype, device = dispatcher.dtype, dispatcher.device
        dense = shape.num_layers - shape.num_moe_layers
        self.embedding_VH = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden, dtype=dtype, device=device))
        fill_weights(
            self.embedding_VH.unsqueeze(0), [SHARED_EXPERT], seed=options.seed, salt=_EMBEDDING_SALT, scale=1.0
        )
        self.blocks = nn.ModuleList(
            DecoderBlock(
                shape,
                dispatcher if layer >= dense else None,
                positions=options.positions,
                dtype=dtype,
                device=device,
                seed=options.seed * 1009 + layer + 1,
                recompute=options.recompute,
                aux_loss_coeff=options.aux_loss_coeff,
            )
            for layer in range(shape.num_layers)
        )
        self.norm = RMSNorm(shape.hidden, dtype=dtype, device=device)
        self.head_HV = replicated_weight(
            shape.hidden, shape.vocab_size, dtype=dtype, device=device, seed=options.seed, salt=_HEAD_SALT
        )

    @property
    def moe_layers(self) -> list[MoELayer]:
        """The MoE layers, first to last."""
        return [block.moe for block in self.blocks if isinstance(block, DecoderBlock) and block.moe is not None]

    def use(self, dispatcher: Dispatcher) -> None:
        """Send the tokens of all MoE layers through this dispatcher, built for the same sizes and group."""
        for layer in self.moe_layers:
            layer.dispatcher = dispatcher

    def expert_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the routed experts of this rank."""
        for layer in self.moe_layers:
            yield from layer.experts.parameters()

    def replicated_parameters(self) -> Iterator[nn.Parameter]:
        """All others: every rank holds them alike."""
        sharded = {id(parameter) for parameter in self.expert_parameters()}
        return (parameter for parameter in self.parameters() if id(parameter) not in sharded)

    def forward(
        self, tokens_BS: torch.Tensor, forced: Sequence[Forced | None] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model; collective over the dispatcher's group.

        Args:
            tokens_BS: int64 below V.
            forced: the forced routing of each MoE layer; None is natural routing.

        Returns:
            logits_BSV in the model's dtype, and the sum of auxiliary losses, float32.
        """
        x_BSH = nn.functional.embedding(tokens_BS, self.embedding_VH)
        aux = torch.zeros((), dtype=torch.float32, device=tokens_BS.device)
        remaining = iter(forced or [None] * self.shape.num_moe_layers)
        for block in self.blocks:
            assert isinstance(block, DecoderBlock)
            x_BSH, own = block(x_BSH, next(remaining) if block.moe is not None else None)
            aux = aux + own
        return self.norm(x_BSH) @ self.head_HV, aux


def next_token_loss(logits_BSV: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all positions, nats, in float32."""
    return nn.functional.cross_entropy(logits_BSV.flatten(0, 1).float(), targets_BS.flatten())
