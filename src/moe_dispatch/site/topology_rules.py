"""The topology rules as data: `topology_rules.yaml` holds severity, wording, advice and source of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.data import read_yaml
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.site.versions import matches


class TopologyRule(BaseModel):
    """One rule.

    Fields:
        check: the function that finds it; None for one that only an observed failure brings (`fabric_handle_failure`).
        backends, gpus: what it is about, backend names and catalogue keys; empty means every one.
        severity: unless the check knows better.
        summary: when it speaks, for the list of rules.
        message, why, advice: templates that the check fills.
        holds_for: versions of the software for which it is true, in words.
        versions: component -> version conditions (`==3.4.5`, `>=3.5.19`), any of which makes it hold; a component whose
            version is unknown counts as holding unless `needs_version` is set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    check: str | None = None
    backends: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    severity: Severity
    summary: str = Field(min_length=1)
    message: str = Field(min_length=1)
    why: str = Field(min_length=1)
    advice: tuple[str, ...] = Field(min_length=1)
    source: str = Field(min_length=1)
    holds_for: str = Field(min_length=1)
    versions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    needs_version: bool = False

    def speaks_of(self, backend: str, gpu: str | None, versions: Mapping[str, str | None]) -> bool:
        """Whether the rule is about this backend, GPU and software."""
        if (self.backends and backend not in self.backends) or (self.gpus and gpu not in self.gpus):
            return False
        for component, conditions in self.versions.items():
            version = versions.get(component)
            if version is None:
                if self.needs_version:
                    return False
            elif not any(matches(version, condition) for condition in conditions):
                return False
        return True

    def finding(
        self, values: Mapping[str, object], *, severity: Severity | None = None, advice: tuple[str, ...] = ()
    ) -> Finding:
        """What the rule found.

        Args:
            values: for the templates.
            severity: instead of the rule's own.
            advice: put before the rule's own.
        """
        return Finding(
            id=self.id,
            severity=severity or self.severity,
            message=self.message.format_map(values),
            why=self.why.format_map(values),
            advice=(*advice, *(text.format_map(values) for text in self.advice)),
            source=self.source,
        )


@cache
def load_topology_rules() -> dict[str, TopologyRule]:
    """The rules by id, in the order of the file."""
    rules = read_yaml("moe_dispatch.site", "topology_rules.yaml")
    return {name: TopologyRule(id=name, **entry) for name, entry in rules.items()}
