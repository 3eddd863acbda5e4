"""Which dispatcher a configuration really runs, and with how many SMs: Megatron's and Bridge's own decision procedure.

Megatron-Core reads `moe_flex_dispatcher_backend` only for type `flex`, and never falls back; Bridge rewrites type and
backend (NVIDIA-NeMo/Megatron-Bridge@067f987d:src/megatron/bridge/training/flex_dispatcher_backend.py and
scripts/performance/utils/utils.py). The default type is allgather and the default backend deepep, so a backend's name
in a dump proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.megatron.effective_sms import sm_count
from moe_dispatch.megatron.resolution import FLEX_BACKENDS, resolve
from moe_dispatch.megatron.rules.catalogue import load_lint_rules
from moe_dispatch.megatron.settings import MegatronConfig, Origin
from moe_dispatch.site.model import Site


@dataclass(frozen=True, kw_only=True)
class Effective:
    """What runs.

    Fields:
        requested: what was asked for: the backend for type flex, or one that was named without it; None when nothing
            was asked for and `effective` is Megatron's default.
        effective: `alltoall`, `allgather` or the flex backend that runs; None when the job stops before it trains.
        backend: the flex backend in effect, None without.
        core_type, core_backend: the two fields as Megatron-Core validates them, after the launcher.
        sm_count: SMs that the configuration gives to communication; None leaves it to the library.
        sm_field: the field that gave it, None for a default.
        origin: of the deciding value.
        findings: what was rewritten, ignored or refused on the way.
        refused: why nothing runs, empty otherwise.
    """

    requested: str | None
    effective: str | None
    backend: str | None
    sm_count: int | None
    sm_field: str | None
    origin: Origin
    core_type: str = ""
    core_backend: str | None = None
    findings: tuple[Finding, ...] = ()
    refused: str = ""

    @property
    def as_requested(self) -> bool:
        """Whether what runs is what was asked for."""
        return self.requested is None or self.requested == self.effective


def effective_dispatcher(config: MegatronConfig, site: Site | None = None) -> Effective:
    """Follow the configuration through the launcher and Megatron-Core to the dispatcher that is built.

    Args:
        site: its GPU decides where Bridge accepts a backend; without it that is not judged.

    Raises:
        UnknownSetting: the type is neither set nor has a known default (overrides of an unknown recipe).
    """
    found = resolve(config, (site.gpu if site else None) or config.gpu)
    effective = found.effective
    flex = effective if effective in FLEX_BACKENDS else None
    sms = sm_count(config, flex)
    rules = load_lint_rules()
    findings = []
    for event in found.events:
        severity = None if event.is_error is None else (Severity.ERROR if event.is_error else Severity.WARNING)
        findings.append(rules[event.rule].finding(event.values, severity=severity, core_version=config.core_version))
    return Effective(
        requested=found.requested,
        effective=effective,
        backend=flex,
        sm_count=sms.count,
        sm_field=sms.field,
        origin=(found.backend if flex and found.backend.origin.kind != "default" else found.type).origin,
        core_type=str(found.type.value),
        core_backend=None if found.backend.value is None else str(found.backend.value),
        findings=tuple(findings),
        refused=found.refused,
    )
