"""Checks on the choice of dispatcher as such, and on the SM count."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.core.finding import Severity
from moe_dispatch.megatron.effective_sms import LEGACY, UNIFIED, given_count
from moe_dispatch.megatron.resolution import FLEX
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule
from moe_dispatch.megatron.rules.signs import is_set

BENCHMARK_STEPS = 1000
"""A run of more steps is training; the performance harness runs 50."""
_OWN_LEGACY = {"deepep": "moe_deepep_num_sms", "hybridep": "moe_hybridep_num_sms"}
_DEFAULT_SMS = {
    "deepep": "20",
    "hybridep": "24 in one NVLink domain and 8 across, chosen by the library",
    "ncclep": "chosen by the library",
}
_PERMUTES_ITSELF = ("hybridep", "ncclep")


@rule("experts-missing")
def experts_missing(job: Job) -> Iterator[Hit]:
    """EP > 1 and no experts."""
    if job.ep > 1 and job.number("num_moe_experts") is None:
        yield Hit({"ep": job.ep})


@rule("flex-requires-tp-times-ep-gt-1")
def group_of_one(job: Job) -> Iterator[Hit]:
    """Expert TP x EP is 1; up to 0.16 no flex backend is built then, later HybridEP is."""
    if not job.is_flex or job.group > 1:
        return
    builds = job.runs("hybridep") and job.core >= (0, 17)
    severity = Severity.WARNING if builds else None
    yield Hit({"backend": job.running, "group": job.group}, severity)


@rule("shared-overlap-unsupported")
def shared_overlap_unsupported(job: Job) -> Iterator[Hit]:
    """Shared experts overlap with alltoall, and from 0.18 on with flex."""
    allowed = ("alltoall",) if job.core < (0, 18) else ("alltoall", FLEX)
    if job.type in allowed or not job.on("moe_shared_expert_overlap"):
        return
    if job.number("moe_shared_expert_intermediate_size") is not None:
        origin = job.given("moe_shared_expert_overlap")
        yield Hit({"type": job.type, "origin": origin, "allowed": " and ".join(allowed)})


@rule("allgather-variable-length")
def allgather_variable_length(job: Job) -> Iterator[Hit]:
    """Variable lengths under allgather."""
    if job.type == "allgather" and job.on("variable_seq_lengths"):
        yield Hit()


@rule("batch-invariant-needs-alltoall")
def batch_invariant(job: Job) -> Iterator[Hit]:
    """Batch-invariant MoE training dispatches by alltoall."""
    if job.get("transformer_impl") == "inference_optimized":
        return
    if job.type != "alltoall" and job.on("batch_invariant_mode") and job.has_experts:
        yield Hit({"type": job.type})


@rule("flex-with-fake-process-group")
def fake_process_group(job: Job) -> Iterator[Hit]:
    """No peers to exchange with."""
    if job.type == FLEX and job.on("fake_process_group"):
        yield Hit()


@rule("permute-fusion-needs-te")
def permute_fusion_needs_te(job: Job) -> Iterator[Hit]:
    """Fused permutation came with Transformer Engine 2.1."""
    if job.on("moe_permute_fusion") and job.package_below("transformer_engine", "2.1"):
        yield Hit({"have": job.packages["transformer_engine"]})


@rule("router-fusion-needs-te")
def router_fusion_needs_te(job: Job) -> Iterator[Hit]:
    """Fused routing came with Transformer Engine 2.7."""
    if job.on("moe_router_fusion") and job.package_below("transformer_engine", "2.7"):
        yield Hit({"have": job.packages["transformer_engine"]})


@rule("permute-fusion-ignored")
def permute_fusion_ignored(job: Job) -> Iterator[Hit]:
    """The backend permutes by itself."""
    if job.runs(*_PERMUTES_ITSELF) and job.on("moe_permute_fusion"):
        other = "; HybridEP's own is moe_permute_fusion_into_hybridep" if job.runs("hybridep") else ""
        yield Hit({"backend": job.running, "other": other})


@rule("latent-needs-te")
def latent_needs_te(job: Job) -> Iterator[Hit]:
    """Latent projections are Transformer Engine's."""
    if job.number("moe_latent_size") is not None and job.get("transformer_impl") == "local":
        yield Hit({"impl": "local"})


@rule("flex-group-includes-expert-tp")
def group_includes_expert_tp(job: Job) -> Iterator[Hit]:
    """The group of a flex backend spans expert tensor parallel ranks too."""
    if job.is_flex and job.expert_tp > 1:
        topk = job.number("moe_router_topk")
        yield Hit({"backend": job.running, "etp": job.expert_tp, "ep": job.ep, "group": job.group, "topk": topk})


@rule("forced-balancing-outside-benchmark")
def forced_balancing(job: Job) -> Iterator[Hit]:
    """Forced routing in a run with a sign of real training."""
    forced = [name for name in ("moe_router_force_load_balancing", "moe_router_force_biased") if is_set(job, name)]
    if not forced:
        return
    steps = job.config.given("train_iters")
    if steps is not None and isinstance(steps.value, int) and steps.value > BENCHMARK_STEPS:
        yield Hit({"field": forced[0], "sign": f"{steps.value} steps are trained"})
    elif is_set(job, "data_path") and is_set(job, "save"):
        yield Hit({"field": forced[0], "sign": "real data are read and checkpoints are saved"})


@rule("sm-knob-of-other-backend")
def sm_knob_of_other_backend(job: Job) -> Iterator[Hit]:
    """A deprecated name of another backend gave the count."""
    field = job.effective.sm_field if job.effective and job.is_flex else None
    if field in LEGACY and field != _OWN_LEGACY.get(job.running):
        count = given_count(job.config, field)
        yield Hit({"backend": job.running, "count": count, "field": field, "origin": job.given(field)})


@rule("sm-knobs-conflict")
def sm_knobs_conflict(job: Job) -> Iterator[Hit]:
    """Both deprecated names, different values, no unified one."""
    given = {name: count for name in LEGACY if (count := given_count(job.config, name)) is not None}
    if len(set(given.values())) > 1 and job.number(UNIFIED) is None:
        yield Hit({"values": " and ".join(f"{name}={count}" for name, count in given.items())})


@rule("sm-knob-shadowed")
def sm_knob_shadowed(job: Job) -> Iterator[Hit]:
    """The unified name wins over another value of a deprecated one."""
    used = given_count(job.config, UNIFIED)
    for name in LEGACY:
        ignored = given_count(job.config, name)
        if job.is_flex and used is not None and ignored not in (None, used):
            yield Hit({"field": name, "ignored": ignored, "used": used, "origin": job.given(name)})


@rule("sm-knob-deprecated")
def sm_knob_deprecated(job: Job) -> Iterator[Hit]:
    """The backend's own deprecated name gave the count."""
    field = job.effective.sm_field if job.effective and job.is_flex else None
    if field is not None and field == _OWN_LEGACY.get(job.running):
        yield Hit({"field": field, "count": given_count(job.config, field)})


@rule("sm-knob-inert")
def sm_knob_inert(job: Job) -> Iterator[Hit]:
    """An SM count where no flex backend runs."""
    if job.is_flex:
        return
    for name in (UNIFIED, *LEGACY):
        count = given_count(job.config, name)
        if count is not None:
            yield Hit({"field": name, "count": count, "dispatcher": job.running})


@rule("sms-untuned")
def sms_untuned(job: Job) -> Iterator[Hit]:
    """Nobody set the count."""
    if job.effective and job.is_flex and job.effective.effective and job.effective.sm_field is None:
        if any(given_count(job.config, name) is not None for name in (UNIFIED, *LEGACY)):
            return
        field = _OWN_LEGACY.get(job.running, UNIFIED)
        yield Hit({"backend": job.running, "default": _DEFAULT_SMS[job.running], "field": field})


def _given_sms(job: Job) -> tuple[str, int] | None:
    found = job.effective
    if found is None or not job.is_flex or found.sm_field is None or found.sm_count is None:
        return None
    return found.sm_field, found.sm_count


@rule("sms-not-positive")
def sms_not_positive(job: Job) -> Iterator[Hit]:
    """Zero or less."""
    given = _given_sms(job)
    if given and given[1] < (0 if job.runs("ncclep") else 1):
        yield Hit({"field": given[0], "count": given[1], "backend": job.running})


@rule("sms-above-gpu")
def sms_above_gpu(job: Job) -> Iterator[Hit]:
    """More than the GPU has."""
    given = _given_sms(job)
    if given and given[1] > job.gpu.sms:
        yield Hit({"field": given[0], "count": given[1], "gpu": job.gpu.name.upper(), "sms": job.gpu.sms})


@rule("sms-oversized")
def sms_oversized(job: Job) -> Iterator[Hit]:
    """Half of the GPU or more."""
    given = _given_sms(job)
    if given and job.gpu.sms // 2 <= given[1] <= job.gpu.sms:
        yield Hit({"field": given[0], "count": given[1], "gpu": job.gpu.name.upper(), "sms": job.gpu.sms})
