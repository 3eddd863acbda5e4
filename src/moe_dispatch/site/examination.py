"""Everything `doctor` found out, for people and machines alike."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from moe_dispatch.core.finding import Finding
from moe_dispatch.site.agreement import Decision
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.model import Site


class HostGates(BaseModel):
    """How far a backend comes on one host, for each of its users."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    gates: tuple[GateResult, ...]


class Examination(BaseModel):
    """One examination of one machine, or of all ranks of a launch.

    Fields:
        site: of the job: the machine of rank 0, with the nodes that were heard.
        decision: what holds for all ranks, with every finding.
        hosts: gates by host; empty for a declared site, where nothing is imported.
        required: backends that must come far enough for exit code 0.
        versions, libraries, settings: of rank 0; where ranks differ, the decision says so. For a declared site only the
            settings of this shell, which a job started from it would inherit.
        fingerprint: of versions and libraries; None for a declared site.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    site: Site
    decision: Decision
    hosts: tuple[HostGates, ...] = ()
    required: tuple[str, ...] = ()
    versions: dict[str, str | None]
    libraries: dict[str, str]
    settings: dict[str, str]
    fingerprint: str | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return self.decision.findings
