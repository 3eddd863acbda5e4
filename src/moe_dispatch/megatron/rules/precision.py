"""Checks on number formats and the experts' GEMM."""

from __future__ import annotations

import re
from collections.abc import Iterator

from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule
from moe_dispatch.site.model import Site

_NUMBER = re.compile(r"\d+\.\d+")
_OLD = "moe_router_padding_for_fp8"
_NEW = "moe_router_padding_for_quantization"


def _padding(job: Job) -> str | None:
    """The field that pads; None when neither does."""
    if job.on(_OLD):
        return _OLD
    return _NEW if job.core >= (0, 16) and job.on(_NEW) else None


@rule("padding-needs-fp8")
def padding_needs_fp8(job: Job) -> Iterator[Hit]:
    """Nothing to pad for."""
    field = _padding(job)
    if field and job.get("fp8") is None and job.get("fp4") is None:
        yield Hit({"field": field})


@rule("padding-with-allgather")
def padding_with_allgather(job: Job) -> Iterator[Hit]:
    """alltoall and flex only."""
    field = _padding(job)
    if field and job.type == "allgather":
        yield Hit({"field": field, "type": job.type})


@rule("padding-name-deprecated")
def padding_name(job: Job) -> Iterator[Hit]:
    """The old name."""
    if job.on(_OLD):
        yield Hit()


@rule("grouped-tensor-needs-grouped-gemm")
def grouped_tensor(job: Job) -> Iterator[Hit]:
    """One needs the other."""
    if job.on("moe_use_grouped_tensor") and not job.on("moe_grouped_gemm"):
        yield Hit()


@rule("expert-bias-terms-need-etp-1")
def bias_terms(job: Job) -> Iterator[Hit]:
    """Bridge sets the size to 1 by itself where EP > 1."""
    if job.has_experts and job.on("add_bias_linear") and job.expert_tp != 1:
        yield Hit({"etp": job.expert_tp})


@rule("fp8-and-fp4")
def two_quantisations(job: Job) -> Iterator[Hit]:
    """One of them."""
    if job.get("fp8") is not None and job.get("fp4") is not None:
        yield Hit({"fp8": job.get("fp8"), "fp4": job.get("fp4")})


@rule("grouped-gemm-needs-sm80")
def grouped_gemm_sm80(job: Job) -> Iterator[Hit]:
    """The probed GPU decides; the catalogue has none that old."""
    found = _oldest_capability(job.site)
    if found is not None and found[1] < 8 and job.on("moe_grouped_gemm"):
        yield Hit({"gpu": found[0], "capability": found[1]})


def _oldest_capability(site: Site | None) -> tuple[str, float] | None:
    """Name and compute capability of the oldest GPU that was seen; None when none was."""
    gpus = site.gpus if site else ()
    seen = [(gpu.name, float(gpu.capability)) for gpu in gpus if gpu.capability and _NUMBER.fullmatch(gpu.capability)]
    return min(seen, key=lambda each: each[1], default=None)
