"""Which symbols a gate imports: a backend's consumer, in the version that is installed or asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from moe_dispatch.core.backend import BackendSpec, Consumer, SymbolNeed
from moe_dispatch.core.errors import UsageError
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.versions import matches

_OURS = "moe-dispatch"
_TORCH = (
    SymbolNeed(module="torch"),
    SymbolNeed(module="torch.distributed", symbols=("all_to_all_single", "init_process_group")),
)


@dataclass(frozen=True)
class Wanted:
    """What to import on whose behalf; with a `refusal` there is nothing to try."""

    spec: BackendSpec
    consumer: str
    needs: tuple[SymbolNeed, ...]
    refusal: GateResult | None = None


def want(spec: BackendSpec, consumer: str | None, python: str = sys.executable) -> Wanted:
    """What the gate imports for a consumer.

    Args:
        consumer: its name, or `name==version`; None is the first, and our own adapter beside it.
        python: a version that is installed counts only for this interpreter itself.

    Raises:
        UsageError: the backend has no such consumer.
    """
    name, _, version = (consumer or "").partition("==")
    known = list(dict.fromkeys(each.name for each in spec.consumers))
    if consumer is not None and name not in known:
        raise UsageError(
            f"{spec.name} has no consumer {name!r}", f"known: {', '.join(known) or 'none'}; leave it out for the first"
        )
    needs = list(_TORCH) if spec.kind == "builtin" else []
    chosen: Consumer | None = None
    if spec.consumers:
        entries = [each for each in spec.consumers if each.name == (name or known[0])]
        installed = version or (_installed(entries[0].name) if python == sys.executable else None)
        chosen = _select(entries, installed)
        if chosen is None:
            return Wanted(spec, f"{entries[0].name} {installed}", (), _too_old(spec, entries, str(installed)))
        needs += chosen.needs
    if consumer is None and spec.target is not None:
        module, _, attribute = spec.target.partition(":")
        needs.append(SymbolNeed(module=module, symbols=(attribute,)))
    return Wanted(spec, chosen.label if chosen else _OURS, tuple(needs))


def _select(entries: Sequence[Consumer], version: str | None) -> Consumer | None:
    """The entry for a version; the newest where none is known."""
    if version is None:
        return entries[0]
    return next((each for each in entries if all(matches(version, condition) for condition in each.versions)), None)


def _too_old(spec: BackendSpec, entries: Sequence[Consumer], version: str) -> GateResult:
    name, ranges = entries[0].name, "; ".join(",".join(each.versions) for each in entries)
    return GateResult(
        backend=spec.name,
        reason_class="missing-feature",
        variant="consumer-too-old",
        reason=f"{name} {version} has no {spec.name}; it takes {ranges}",
        fix=f"install {name} {entries[0].versions[0].lstrip('>=')} or newer",
        consumer=f"{name} {version}",
    )


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
