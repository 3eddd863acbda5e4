"""Finding backends: every entry point of the group `moe_dispatch.backends`, ours and third parties' alike.

An entry point names a BackendSpec or a callable without arguments that returns one. A broken entry point of somebody
else becomes a finding and never stops a run.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from moe_dispatch.core.backend import BackendSpec, Knob
from moe_dispatch.core.choice import KnobValue
from moe_dispatch.core.errors import UnsupportedByBackend, UsageError
from moe_dispatch.core.finding import Finding, Severity

ENTRY_POINT_GROUP = "moe_dispatch.backends"


@cache
def load_backends_with_findings() -> tuple[dict[str, BackendSpec], tuple[Finding, ...]]:
    """All backends by name, simplest first, and what was wrong with entry points that could not be used."""
    found: dict[str, BackendSpec] = {}
    findings: list[Finding] = []
    for entry in sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda e: (not _is_ours(e), e.name)):
        spec = _load(entry, findings)
        if spec is None:
            continue
        if spec.name in found:
            if found[spec.name] != spec:
                findings.append(_finding("duplicate-backend", entry, f"the name {spec.name!r} is already taken"))
            continue
        found[spec.name] = spec
    ordered = sorted(found.values(), key=lambda spec: (spec.simplicity, spec.name))
    return {spec.name: spec for spec in ordered}, tuple(findings)


def load_backends() -> dict[str, BackendSpec]:
    """All usable backends by name, simplest first."""
    return dict(load_backends_with_findings()[0])


def get_backend(name: str) -> BackendSpec:
    """The backend called `name`.

    Raises:
        UsageError: no such backend; names the known ones and a close match.
    """
    known = load_backends()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "install the package that registers it, or use a known one"
    raise UsageError(f"unknown dispatcher {name!r}; known: {', '.join(known)}", hint)


def load_target(spec: BackendSpec) -> type[Any]:
    """Import the Dispatcher class of a backend; needs torch.

    Raises:
        UnsupportedByBackend: this release holds no adapter for it, or its adapter cannot be imported.
    """
    if spec.target is None:
        raise UnsupportedByBackend(
            f"{spec.name}: this release of moe-dispatch holds no adapter, so it can be gated and emitted, not measured"
        )
    module, _, attribute = spec.target.partition(":")
    try:
        target: type[Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnsupportedByBackend(
            f"{spec.name}: its dispatcher {spec.target} cannot be imported: {error}", spec.install_hint
        ) from error
    return target


def validate_knobs(spec: BackendSpec, knobs: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """Check knobs against the specification; strings (from a command line) are converted.

    Raises:
        UsageError: unknown knob or a value outside what is allowed.
    """
    unknown = sorted(set(knobs) - set(spec.knobs))
    if unknown:
        allowed = ", ".join(spec.knobs) or "none"
        raise UsageError(f"{spec.name} has no knob {unknown[0]!r}; its knobs: {allowed}")
    return {name: _check_value(spec.name, name, spec.knobs[name], value) for name, value in knobs.items()}


def _check_value(backend: str, name: str, knob: Knob, value: KnobValue) -> KnobValue:
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
        if knob.default is None or None in (knob.allowed or ()):
            return None
        raise UsageError(f"{backend}: {name} must be set; {_allowed_text(knob)}")
    converted = _convert(knob, value)
    fits = converted is not None
    if fits and knob.allowed is not None:
        fits = converted in knob.allowed
    if fits and isinstance(converted, (int, float)) and not isinstance(converted, bool):
        fits = knob.minimum is None or converted >= knob.minimum
        fits = fits and (knob.maximum is None or converted <= knob.maximum)
        fits = fits and (knob.multiple is None or converted % knob.multiple == 0)
    if not fits:
        raise UsageError(f"{backend}: {name}={value!r} is not valid; {_allowed_text(knob)}", knob.help)
    return converted


def _convert(knob: Knob, value: KnobValue) -> KnobValue:
    """The value in the knob's type, or None when it has no such meaning."""
    if knob.type == "bool":
        if isinstance(value, bool):
            return value
        return {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    if knob.type == "str":
        return value if isinstance(value, str) else None
    if isinstance(value, bool):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if knob.type == "float":
        return number if number == number and abs(number) != float("inf") else None
    return int(number) if number.is_integer() else None


def _allowed_text(knob: Knob) -> str:
    if knob.allowed is not None:
        return "allowed: " + ", ".join(str(value) for value in knob.allowed)
    parts: list[str] = [knob.type]
    if knob.minimum is not None:
        parts.append(f"at least {knob.minimum:g}")
    if knob.maximum is not None:
        parts.append(f"at most {knob.maximum:g}")
    if knob.multiple is not None:
        parts.append(f"a multiple of {knob.multiple}")
    return "allowed: " + ", ".join(parts)


def _is_ours(entry: metadata.EntryPoint) -> bool:
    return entry.value.startswith("moe_dispatch.")


def _load(entry: metadata.EntryPoint, findings: list[Finding]) -> BackendSpec | None:
    try:
        loaded = entry.load()
        spec = loaded() if callable(loaded) and not isinstance(loaded, BackendSpec) else loaded
    except Exception as error:  # somebody else's code: whatever it raises must not stop the run
        findings.append(_finding("broken-backend-entry-point", entry, f"{type(error).__name__}: {error}"))
        return None
    if not isinstance(spec, BackendSpec):
        what = f"it gives {type(spec).__name__}, no BackendSpec"
        findings.append(_finding("broken-backend-entry-point", entry, what))
        return None
    return spec


def _finding(identifier: str, entry: metadata.EntryPoint, what: str) -> Finding:
    owner = entry.dist.name if entry.dist is not None else "unknown distribution"
    return Finding(
        id=identifier,
        severity=Severity.WARNING,
        message=f"backend {entry.name!r} of {owner} ({entry.value}) cannot be used: {what}",
        why="the other backends are not affected",
        advice=(f"repair or uninstall {owner}",),
        source=ENTRY_POINT_GROUP,
    )
