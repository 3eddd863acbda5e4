"""What the tests of the whole model run on each gloo rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from moe_dispatch.dispatch.alltoall import AllToAllDispatcher
from moe_dispatch.dispatch.hierarchical import HierarchicalDispatcher
from moe_dispatch.moe.block import DecoderBlock
from moe_dispatch.moe.data import TextBatches
from moe_dispatch.moe.forced import RoutingSource
from moe_dispatch.moe.model import LanguageModel, ModelOptions
from moe_dispatch.moe.optimizer import MasterAdamW
from moe_dispatch.moe.parallel import make_groups
from moe_dispatch.moe.trainer import Trainer
from moe_dispatch.workload.catalogue import find_model
from moe_dispatch.workload.trainable import parse_scale, scaled
from moe_dispatch.workload.training_text import read_text

KINDS = {"alltoall": AllToAllDispatcher, "hierarchical": HierarchicalDispatcher}
LENGTH = 32
SCALE = "layers=2,hidden=32,experts=8,topk=3,ffn=16"


def make_trainer(
    ep: int,
    dispatcher: str = "alltoall",
    *,
    model: str = "qwen3-30b-a3b",
    scale: str = SCALE,
    recompute: str = "none",
    routing: str = "force_balanced",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Trainer:
    """A trainer over all ranks of the default group, eight sequences a step."""
    device = torch.device("cpu")
    shape = scaled(find_model(model), parse_scale(scale))
    groups = make_groups(dist.group.WORLD, ep)
    exchange = KINDS[dispatcher](
        groups.expert, shape.num_experts, shape.dispatch_width, shape.topk, LENGTH, dtype, device
    )
    options = ModelOptions(positions=LENGTH, seed=seed, recompute=recompute, aux_loss_coeff=1e-2)
    language = LanguageModel(shape, exchange, options)
    text, name = read_text(None)
    return Trainer(
        language,
        MasterAdamW(language, groups),
        groups,
        TextBatches(text, LENGTH, seed=seed, device=device, name=name),
        RoutingSource(routing, shape, seed=seed, device=device),
        seq_length=LENGTH,
        micro_batch=1,
        global_batch=8,
    )


def first_gradients(rank: int, world: int, cases: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each (EP size, fields): loss and summed gradients of the first step, those of all experts joined."""
    return [_first_gradients(ep, fields) for ep, fields in cases]


def _first_gradients(ep: int, fields: dict[str, Any]) -> dict[str, Any]:
    trainer = make_trainer(ep, **fields)
    loss = trainer.gradients(0)
    dist.all_reduce(loss)
    trainer.optimizer.reduce()
    model = trainer.model
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    experts = [name for name in grads if ".experts." in name]
    for name in experts:
        parts = [torch.empty_like(grads[name]) for _ in range(dist.get_world_size(trainer.groups.expert))]
        dist.all_gather(parts, grads[name], group=trainer.groups.expert)
        grads[name] = torch.cat(parts)
    return {"loss": float(loss), "grads": {name: grad.numpy() for name, grad in grads.items()}}


def losses(rank: int, world: int, ep: int, steps: int, fields: dict[str, Any]) -> list[float]:
    """Loss of every step."""
    trainer = make_trainer(ep, **fields)
    return [trainer.step(number).loss for number in range(steps)]


def bias_after(rank: int, world: int, ep: int) -> list[float]:
    """Selection bias of the MoE layer after one step of a model that balances by it."""
    trainer = make_trainer(ep, model="deepseek-v3", scale="layers=2,hidden=64", routing="natural")
    trainer.step(0)
    return trainer.model.moe_layers[0].router.expert_bias_E.tolist()


def recomputed_steps(rank: int, world: int, steps: int) -> int:
    """Run forward and backward of one block whose MoE layer is recomputed; returns the steps that ran.

    Between the two the gate is replaced, so that routing anew would choose other experts: only a replay of the forward
    pass's choices keeps the rows of both exchanges alike.
    """
    shape = scaled(find_model("qwen3-30b-a3b"), parse_scale("layers=1,hidden=16,experts=8,topk=2,ffn=16"))
    exchange = AllToAllDispatcher(dist.group.WORLD, 8, 16, 2, LENGTH, torch.float32, "cpu")
    block = DecoderBlock(
        shape,
        exchange,
        positions=LENGTH,
        dtype=torch.float32,
        device="cpu",
        seed=0,
        recompute="selective",
        aux_loss_coeff=0.0,
    )
    own = torch.Generator().manual_seed(rank)
    ran = 0
    for _ in range(steps):
        length = int(torch.randint(1, 17, (1,), generator=own))
        x = torch.randn(1, length, shape.hidden, generator=own, requires_grad=True)
        out, _ = block(x, None)
        with torch.no_grad():
            block.moe.router.weight_EH.normal_()
        out.square().mean().backward()
        ran += bool(torch.isfinite(x.grad).all())
    return ran
