"""A choice as configuration: Megatron-LM arguments, Megatron-Bridge overrides and harness flags, and environment.

Field names, version gates and rewrites are those of NVIDIA/Megatron-LM@d98e8a64
(megatron/core/transformer/transformer_config.py) and NVIDIA-NeMo/Megatron-Bridge@067f987d
(scripts/performance/utils/utils.py, src/megatron/bridge/training/flex_dispatcher_backend.py).
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.backend import BackendSpec, MegatronMapping
from moe_dispatch.core.choice import Choice, KnobValue
from moe_dispatch.core.errors import UnsupportedByBackend, UsageError
from moe_dispatch.core.registry import get_backend, load_backends, validate_knobs
from moe_dispatch.megatron.draft import Draft
from moe_dispatch.megatron.fields import FlexBackend, load_fields
from moe_dispatch.megatron.version import has_reached, parse_release
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload

DEFAULT_CORE_VERSION = "0.19"
UNIFIED_SM_FIELD = "moe_flex_dispatcher_num_sms"
_BACKEND_FIELD = "moe_flex_dispatcher_backend"
_TYPE_FIELD = "moe_token_dispatcher_type"


class Emitted(BaseModel):
    """Configuration that selects one dispatcher.

    Fields:
        requested: the choice that was asked for; `emitted`: the one that the arguments select. They differ when
            Megatron does not ship what was asked for; `emitted` is None when nothing stands in for it.
        megatron_lm_args: for `pretrain_gpt.py`.
        bridge_overrides: Hydra overrides (`model.x=y`), for recipes, `scripts/training` and the performance harness.
        bridge_harness_flags: flags of `scripts/performance`; empty when the harness has none for this dispatcher.
        environment: variables that must be set on every rank; the overrides hold them too.
        benchmark_only_args, benchmark_only_overrides: what a comparison adds to force the measured routing; it changes
            what is trained, so it stays out of a real training run.
        notes: what a reader must know before using it.
        other_workload: why this release cannot train the baseline's workload with it; empty when it can.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requested: Choice
    emitted: Choice | None
    core_version: str
    megatron_lm_args: tuple[str, ...] = ()
    bridge_overrides: tuple[str, ...] = ()
    bridge_harness_flags: tuple[str, ...] = ()
    environment: dict[str, str] = Field(default_factory=dict)
    benchmark_only_args: tuple[str, ...] = ()
    benchmark_only_overrides: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    other_workload: str = ""

    @property
    def shipped(self) -> bool:
        """Whether Megatron ships the dispatcher that was asked for."""
        return self.emitted is not None and self.requested.dispatcher == self.emitted.dispatcher


def emit(
    choice: Choice,
    spec: BackendSpec | None = None,
    workload: Workload | None = None,
    site: Site | None = None,
    core_version: str = DEFAULT_CORE_VERSION,
    benchmark_routing: bool = True,
    fallback: Choice | None = None,
) -> Emitted:
    """Write the configuration that selects `choice`.

    Args:
        spec: specification of the choice's backend; looked up when None.
        workload: gives the group size and the routing mode; without it nothing is checked against them.
        site: gives the NVLink domain; without it the variable that names it is left to the library.
        core_version: Megatron-Core release, `0.19` or `0.19.2`.
        benchmark_routing: give the benchmark-only arguments that force the measured routing; False makes sure that
            routing is natural.
        fallback: emitted instead when Megatron does not ship the choice: the best measured one that it does. Without
            one the result holds no arguments and says why.

    Raises:
        UsageError: the release is too old for the dispatcher, a knob is not valid, or the group is impossible for it.
        UnsupportedByBackend: Megatron does not ship the fallback either.
    """
    parse_release(core_version)
    spec = spec or get_backend(choice.dispatcher)
    mapping = spec.megatron
    if mapping is None:
        return _emit_fallback(choice, fallback, workload, site, core_version, benchmark_routing)
    knobs = validate_knobs(spec, choice.knobs)
    if not has_reached(core_version, mapping.min_core_version):
        raise UsageError(
            f"{spec.name} needs Megatron-Core {mapping.min_core_version} or newer; this is {core_version}",
            f"use Megatron-Core {mapping.min_core_version}, or emit the alltoall baseline",
        )
    draft = Draft(version=core_version, table=load_fields())
    demands = draft.table.backend(mapping.flex_backend)
    _select(draft, mapping)
    _sm_count(draft, spec, mapping, knobs)
    _clear_other_sm_fields(draft)
    _other_knobs(draft, spec, mapping, demands, knobs)
    _routing(draft, workload, benchmark_routing)
    if workload is not None:
        _check_group(spec, demands, workload, draft)
    if demands.exchange.domain_variable:
        _domain(draft, spec, demands, workload, site)
    _notes(draft, mapping, demands, site)
    return _finish(choice, Choice(dispatcher=choice.dispatcher, knobs=knobs), draft)


def _emit_fallback(
    choice: Choice,
    fallback: Choice | None,
    workload: Workload | None,
    site: Site | None,
    core_version: str,
    benchmark_routing: bool,
) -> Emitted:
    not_shipped = f"Megatron ships no dispatcher {choice.dispatcher!r}"
    if fallback is None:
        shipped = ", ".join(name for name, spec in load_backends().items() if spec.megatron is not None)
        note = f"{not_shipped}, so there is no configuration for it; it ships {shipped}"
        return Emitted(requested=choice, emitted=None, core_version=core_version, notes=(note,))
    spec = get_backend(fallback.dispatcher)
    if spec.megatron is None:
        raise UnsupportedByBackend(f"{not_shipped}, nor the fallback {fallback.dispatcher!r}")
    emitted = emit(fallback, spec, workload, site, core_version, benchmark_routing)
    note = f"{not_shipped}: this configuration selects {fallback.label}, which does not carry its measured advantage"
    return emitted.model_copy(update={"requested": choice, "notes": (note, *emitted.notes)})


def _finish(requested: Choice, emitted: Choice, draft: Draft) -> Emitted:
    return Emitted(
        requested=requested,
        emitted=emitted,
        core_version=draft.version,
        megatron_lm_args=tuple(draft.lm),
        bridge_overrides=(
            *draft.overrides,
            *(f"env_vars.{name}={value}" for name, value in draft.environment.items()),
        ),
        bridge_harness_flags=tuple(draft.flags),
        environment=draft.environment,
        benchmark_only_args=tuple(draft.benchmark_args),
        benchmark_only_overrides=tuple(draft.benchmark_overrides),
        notes=tuple(draft.notes),
        other_workload=draft.other_workload,
    )


def _select(draft: Draft, mapping: MegatronMapping) -> None:
    draft.set(_TYPE_FIELD, mapping.dispatcher_type)
    if mapping.flex_backend is not None:
        draft.table.require(_BACKEND_FIELD, draft.version)
        draft.set(_BACKEND_FIELD, mapping.flex_backend)
    elif draft.table.has(_BACKEND_FIELD, draft.version):
        # The field's default is a backend's name, and a Bridge launcher turns any name there into type flex.
        # Megatron-LM ignores the field unless the type is flex, and its flag takes no empty value.
        draft.override(_BACKEND_FIELD, None)
        draft.notes.append(
            "moe_flex_dispatcher_backend is set to null: left at a backend's name, Bridge's recipe launcher "
            "(run_recipe.py) would silently select that backend"
        )
    if mapping.bridge_flag is not None and draft.table.has(_BACKEND_FIELD, draft.version):
        draft.flags += ["--moe_flex_dispatcher_backend", mapping.bridge_flag]


def _sm_count(draft: Draft, spec: BackendSpec, mapping: MegatronMapping, knobs: dict[str, KnobValue]) -> None:
    if mapping.sm_knob is None:
        return
    knob = spec.knobs[mapping.sm_knob]
    value = knobs.get(mapping.sm_knob, knob.default)
    if mapping.sm_knob not in knobs:
        draft.notes.append(f"{mapping.sm_knob} is the default, not tuned; sweep it before a comparison is believed")
    unified = draft.table.has(UNIFIED_SM_FIELD, draft.version)
    name = UNIFIED_SM_FIELD if unified else mapping.legacy_sm_field
    if name is None:
        raise UsageError(f"{spec.name}: Megatron-Core {draft.version} has no field for {mapping.sm_knob}")
    if value is not None:
        draft.set(name, value)


def _clear_other_sm_fields(draft: Draft) -> None:
    """In Bridge, where a recipe may have set any backend's SM field: with the unified one, it would reach this backend.

    Older releases read each backend's own field, and their defaults are numbers that null would replace.
    """
    if not draft.table.has(UNIFIED_SM_FIELD, draft.version):
        return
    given = {word.partition("=")[0].removeprefix("model.") for word in draft.overrides}
    for name in (UNIFIED_SM_FIELD, *draft.table.legacy_sm_fields):
        if name not in given:
            draft.override(name, None)


def _other_knobs(
    draft: Draft,
    spec: BackendSpec,
    mapping: MegatronMapping,
    demands: FlexBackend,
    knobs: dict[str, KnobValue],
) -> None:
    for name, value in knobs.items():
        if name == mapping.sm_knob or value is None:
            continue
        target = demands.knob_fields.get(name)
        if target is None:
            if value != spec.knobs[name].default:
                draft.notes.append(
                    f"{name}={value} has no counterpart in Megatron; it is not part of this configuration"
                )
            continue
        draft.table.require(target, draft.version)
        draft.set(target, value)


def _routing(draft: Draft, workload: Workload | None, benchmark_routing: bool) -> None:
    if not benchmark_routing:
        draft.override("moe_router_force_load_balancing", False)
        return
    spec = workload.routing_spec if workload is not None else None
    if spec is not None and spec.kind == "biased":
        draft.table.require("moe_router_force_biased", draft.version)
        draft.force("moe_router_force_biased", spec.value)
    else:
        draft.force("moe_router_force_load_balancing", True)
        if spec is not None and spec.kind in ("zipf", "trace"):
            draft.notes.append(
                f"Megatron cannot force {spec.kind} routing; these arguments force balanced routing instead"
            )
    draft.notes.append(
        "forced routing is benchmark-only: it replaces the router's decision, so nothing is learned from it; keep it "
        "the same in every arm and remove it for training"
    )


def _check_group(spec: BackendSpec, demands: FlexBackend, workload: Workload, draft: Draft) -> None:
    size = group_size(workload)
    if size < demands.smallest_group:
        raise UsageError(
            f"{spec.name} needs TP x EP of at least {demands.smallest_group}; this layout has {size}",
            "raise --ep, or use alltoall",
        )
    if demands.exchange.group_sizes and size not in demands.exchange.group_sizes:
        allowed = ", ".join(map(str, demands.exchange.group_sizes))
        draft.notes.append(
            f"{spec.name} has no configuration for a group of {size} ranks and would stop at the first iteration; it "
            f"has them for {allowed} ({demands.exchange.group_sizes_source})"
        )


def group_size(workload: Workload) -> int:
    """Ranks of the group that a flex dispatcher exchanges over: expert tensor parallel x expert parallel."""
    return workload.layout.expert_tp * workload.layout.ep


def _domain(
    draft: Draft, spec: BackendSpec, demands: FlexBackend, workload: Workload | None, site: Site | None
) -> None:
    name = demands.exchange.domain_variable or ""
    if workload is None or site is None or site.nvlink_domain is None:
        draft.notes.append(
            f"{name} is not set because the NVLink domain or the group is unknown here; recent builds detect it, a "
            f"wrong value is worse than none ({demands.exchange.domain_source})"
        )
        return
    size, domain = group_size(workload), site.nvlink_domain
    inside = min(size, domain)
    if size % inside:
        raise UsageError(
            f"{spec.name}: a group of {size} ranks does not divide into NVLink domains of {domain}",
            f"choose EP x ETP that is at most {domain} or a multiple of it",
        )
    draft.environment[name] = str(inside)
    draft.notes.append(
        f"{name}={inside} must be the group's ranks in one NVLink domain ({domain} GPUs on {site.name}); a value "
        "already exported in the shell wins over a recipe's"
    )
    if domain % inside:
        draft.notes.append(f"groups of {size} do not tile a domain of {domain}: place every group inside one domain")
    if site.is_multi_node_nvlink and size > domain:
        draft.notes.append(f"Bridge refuses {spec.name} with a group larger than the domain of {domain}")


def _notes(draft: Draft, mapping: MegatronMapping, demands: FlexBackend, site: Site | None) -> None:
    if demands.float32_probs:
        draft.notes.append("its routing weights are float32: set moe_router_dtype=fp32 in every arm")
    if mapping.flex_backend is not None:
        draft.notes.append(
            "Bridge switches moe_shared_expert_overlap off for flex dispatchers; switch it off in the baseline arm too"
        )
    if site is not None and site.gpu in demands.exchange.refused_on:
        draft.notes.append(demands.refused_text.format(gpu=(site.gpu or "").upper()))
    held = [n for n in demands.notes if n.until is None or parse_release(draft.version) <= parse_release(n.until)]
    draft.notes += [note.text for note in held]
    draft.other_workload = "; ".join(note.text for note in held if note.other_workload)
