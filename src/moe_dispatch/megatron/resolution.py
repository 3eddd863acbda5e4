"""The decision procedure behind `effective`: type and backend through launcher, Bridge and Megatron-Core, step by step.

Each step that rewrites, ignores or refuses something leaves an event: the id of a rule and the values of its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moe_dispatch.megatron.settings import MegatronConfig, Origin, UnknownSetting, Value
from moe_dispatch.megatron.settings_fields import Setting
from moe_dispatch.megatron.version import has_reached, parse_release
from moe_dispatch.site.hardware import load_hardware

TYPE_FIELD = "moe_token_dispatcher_type"
BACKEND_FIELD = "moe_flex_dispatcher_backend"
FLEX = "flex"
FLEX_BACKENDS = ("deepep", "hybridep", "ncclep")
PLAIN_TYPES = ("allgather", "alltoall")
REWRITTEN = ("deepep", "hybridep")
"""Backends that Bridge's recipe runner turns into type flex, whatever the type was."""
_BRIDGE_MAJORS = {"deepep": (8, 9), "hybridep": (8, 9, 10), "ncclep": (9, 10)}
_BRIDGE_NAMED = {"deepep": ("b200", "b300")}
"""GPUs that Bridge accepts although their compute capability is not in its list."""
_ASKED_BY_USER = ("flag", "override", "script", "declared")


@dataclass(frozen=True)
class Event:
    """Something that happened on the way: rule id, values for its text."""

    rule: str
    values: Mapping[str, object] = field(default_factory=dict)
    is_error: bool | None = None


@dataclass(frozen=True)
class Resolution:
    """Where type and backend stand.

    Fields:
        type, backend: values in effect so far; backend is None when null.
        requested: what was asked for, None when nothing was.
        refused: why nothing runs.
    """

    type: Value
    backend: Value
    requested: str | None = None
    refused: str = ""
    events: tuple[Event, ...] = ()

    @property
    def effective(self) -> str | None:
        """The dispatcher that runs; None when the job stops."""
        if self.refused:
            return None
        return str(self.backend.value if self.type.value == FLEX else self.type.value)

    def but(self, event: Event, **changes: object) -> Resolution:
        """A copy with changes and one more event."""
        return replace(self, events=(*self.events, event), **changes)  # type: ignore[arg-type]


def resolve(config: MegatronConfig, gpu: str | None = None) -> Resolution:
    """Follow the configuration to the dispatcher that is built.

    Args:
        gpu: key of the hardware catalogue; None leaves Bridge's rules for GPUs unjudged.

    Raises:
        UnknownSetting: the type, or for type flex the backend, is not known.
    """
    found = Resolution(config.value(TYPE_FIELD), _backend(config), _requested(config))
    for step in (_deprecated_switch, _recipe_runner, _bridge_gpu, _bridge_empty_backend, _core):
        if found.refused:
            break
        found = step(found, config, gpu)
    return found


def _backend(config: MegatronConfig) -> Value:
    """The backend field; releases before it have DeepEP or nothing behind type flex."""
    try:
        return config.value(BACKEND_FIELD)
    except UnknownSetting:
        kind = config.given(TYPE_FIELD)
        if kind is not None and kind.value != FLEX and config.launcher != "run_recipe":
            return Value(None)
        raise


def _requested(config: MegatronConfig) -> str | None:
    kind, backend = config.given(TYPE_FIELD), config.given(BACKEND_FIELD)
    if kind is not None and kind.value == FLEX:
        return _name(_backend(config).value)
    if backend is not None and backend.value in FLEX_BACKENDS:
        by_user = backend.origin.kind in _ASKED_BY_USER
        only_default = backend.value == "deepep" and not by_user
        weaker = kind is not None and (backend.origin.kind == "recipe" or _is_later(kind, backend))
        if not only_default and not weaker:
            return str(backend.value)
    return None if kind is None else _name(kind.value)


def _is_later(kind: Value, backend: Value) -> bool:
    """The type was set by the user and the backend was not."""
    return kind.origin.kind in _ASKED_BY_USER and backend.origin.kind not in _ASKED_BY_USER


def _name(value: Setting) -> str | None:
    return None if value is None else str(value)


def _deprecated_switch(found: Resolution, config: MegatronConfig, _gpu: str | None) -> Resolution:
    given = config.given("moe_enable_deepep")
    if given is None or given.value is not True:
        return found
    values = {"origin": given.origin, "type": found.type.value, "backend": found.backend.value}
    if found.type.value != FLEX:
        return found.but(Event("deepep-switch-without-flex", values), refused="moe_enable_deepep needs type flex")
    if config.core_version is not None and not has_reached(config.core_version, "0.16"):
        return replace(found, backend=Value("deepep", given.origin), requested="deepep")
    if found.backend.value == "hybridep":
        return found.but(Event("deepep-switch-conflict", values), refused="two flex backends are asked for")
    replaced = Event("deepep-switch-overrides-backend", values)
    backend = Value("deepep", given.origin)
    if found.backend.value == "ncclep":
        return found.but(replaced, backend=backend, requested="ncclep")
    return found.but(Event("deepep-switch-deprecated", values), backend=backend)


def _recipe_runner(found: Resolution, config: MegatronConfig, _gpu: str | None) -> Resolution:
    """Bridge's run_recipe.py, after all overrides: a backend's name makes the type flex, none makes it alltoall."""
    if not config.is_bridge or config.stage == "validated" or config.launcher != "run_recipe":
        return found
    if found.backend.value in REWRITTEN and found.type.value != FLEX:
        asked = found.requested
        event = Event(
            "launcher-rewrites-dispatcher",
            {"type": found.type.value, "backend": found.backend.value, "origin": found.type.origin},
            is_error=None if found.type.origin.kind in _ASKED_BY_USER else False,
        )
        return found.but(event, type=Value(FLEX, Origin("derived", "run_recipe.py")), requested=asked)
    return found


def _bridge_gpu(found: Resolution, config: MegatronConfig, gpu: str | None) -> Resolution:
    """Bridge's list of GPUs: the harness flag and recipe code fall back, overrides are refused."""
    backend = found.backend.value
    if not config.is_bridge or config.stage == "validated" or gpu is None or found.type.value != FLEX:
        return found
    if not isinstance(backend, str) or bridge_accepts(backend, gpu, config.bridge_version) is not False:
        return found
    values = {"requested": backend, "gpu": gpu.upper(), "origin": found.backend.origin}
    if config.launcher == "run_recipe" or found.backend.origin.kind in ("override", "log"):
        event = Event("bridge-refuses-backend", values)
        return found.but(event, refused=f"Megatron-Bridge does not accept {backend} on {gpu.upper()}")
    derived = Origin("derived", "apply_flex_dispatcher_backend")
    return found.but(
        Event("requested-not-effective", values), type=Value("alltoall", derived), backend=Value(None, derived)
    )


def bridge_accepts(backend: str, gpu: str, bridge_version: str | None = None) -> bool | None:
    """Whether Bridge builds a flex backend on a GPU of the catalogue; None when it does not look, or we do not know."""
    majors = _BRIDGE_MAJORS.get(backend)
    entry = load_hardware().get(gpu)
    if majors is None or entry is None or (backend == "ncclep" and not _is_bridge_062(bridge_version)):
        return None
    if gpu in _BRIDGE_NAMED.get(backend, ()):
        return True
    if entry.vendor != "nvidia":
        return False
    return int(entry.capability.partition(".")[0]) in majors


def _is_bridge_062(version: str | None) -> bool:
    return version is not None and parse_release(version) == (0, 6) and version.strip() >= "0.6.2"


def _bridge_empty_backend(found: Resolution, config: MegatronConfig, _gpu: str | None) -> Resolution:
    """Type flex without a backend is alltoall in current Bridge; 0.6.2 hands it to Megatron-Core, which refuses it."""
    empty = found.type.value == FLEX and found.backend.value is None
    if not empty or not config.is_bridge or config.stage == "validated" or _is_bridge_062(config.bridge_version):
        return found
    derived = Origin("derived", "validate_flex_dispatcher_backend")
    return found.but(Event("flex-without-backend", {"outcome": "alltoall"}), type=Value("alltoall", derived))


def _core(found: Resolution, config: MegatronConfig, _gpu: str | None) -> Resolution:
    """Megatron-Core's own part: no fall-back, an exception for what it does not know."""
    kind, backend = found.type.value, found.backend.value
    if kind == FLEX:
        if config.core_version is not None and not has_reached(config.core_version, "0.16"):
            switch = config.given("moe_enable_deepep")
            if switch is None or switch.value is not True:
                return found.but(Event("flex-needs-deepep-switch"), refused="type flex has no backend")
            return found
        known = known_backends(config.core_version)
        if backend in known:
            return found
        event = Event("flex-without-backend", {"outcome": None}) if backend is None else None
        event = event or Event("unknown-flex-backend", {"backend": backend, "allowed": ", ".join(known)})
        return found.but(event, refused=f"{backend} is no flex backend")
    if kind not in PLAIN_TYPES:
        allowed = ", ".join((*PLAIN_TYPES, FLEX))
        event = Event("unknown-dispatcher-type", {"type": kind, "allowed": allowed})
        return found.but(event, refused=f"{kind} is no dispatcher type")
    given = config.given(BACKEND_FIELD)
    if backend == "ncclep" and backend in known_backends(config.core_version):
        return found.but(
            Event("ncclep-without-flex", {"type": kind, "origin": found.backend.origin}),
            refused="ncclep needs type flex",
        )
    if given is not None and backend in FLEX_BACKENDS:
        return _ignored_backend(found, config, given)
    return found


def known_backends(core_version: str | None) -> tuple[str, ...]:
    """Flex backends that a release builds; an unknown release counts as current."""
    older = core_version is not None and not has_reached(core_version, "0.19")
    return FLEX_BACKENDS[:-1] if older else FLEX_BACKENDS


def _ignored_backend(found: Resolution, config: MegatronConfig, given: Value) -> Resolution:
    """A backend is named, and nothing reads it."""
    values = {"type": found.type.value, "backend": given.value, "origin": given.origin}
    if found.requested == given.value:
        return found.but(Event("backend-without-flex", values, is_error=True))
    if config.is_bridge and config.launcher == "unknown" and config.stage == "requested":
        return found.but(Event("dispatcher-depends-on-launcher", values))
    if given.value == "deepep":
        return found
    return found.but(Event("backend-without-flex", values))
