"""Checks on parallel sizes."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule


@rule("experts-not-divisible-by-ep")
def experts_divide(job: Job) -> Iterator[Hit]:
    """Every rank holds as many experts."""
    experts = job.number("num_moe_experts")
    if experts and experts % job.ep:
        yield Hit({"experts": experts, "ep": job.ep})


@rule("ranks-do-not-divide")
def ranks_divide(job: Job) -> Iterator[Hit]:
    """Attention and expert layout fold the same ranks."""
    if job.world is None:
        return
    blocks = {"TP x CP x PP": job.tp * job.cp * job.pp, "expert TP x EP x PP": job.group * job.pp}
    for label, size in blocks.items():
        if job.world % size:
            yield Hit({"label": label, "size": size, "world": job.world})


@rule("tp-without-sequence-parallel")
def sequence_parallel_missing(job: Job) -> Iterator[Hit]:
    """The MoE layer's own check in training."""
    if job.tp > 1 and job.get("sequence_parallel") is False and job.has_experts:
        yield Hit({"tp": job.tp})


@rule("sequence-parallel-without-tp")
def sequence_parallel_useless(job: Job) -> Iterator[Hit]:
    """Nothing to split over."""
    if job.on("sequence_parallel") and job.tp == 1:
        yield Hit()


@rule("expert-tp-follows-tp")
def expert_tp_follows(job: Job) -> Iterator[Hit]:
    """Megatron-LM's default; Bridge's is 1."""
    unset = job.number("expert_tensor_parallel_size") is None
    if unset and job.tp > 1 and job.ep > 1 and not job.config.is_bridge:
        yield Hit({"tp": job.tp, "group": job.group})
