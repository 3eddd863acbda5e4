"""The lint rules as data: one YAML for each theme holds severity, versions, wording, fix and source of its rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.megatron.version import parse_release

THEMES = (
    "effective",
    "dispatcher",
    "routing",
    "deepep",
    "hybridep",
    "ncclep",
    "overlap",
    "graphs",
    "recompute",
    "precision",
    "layout",
    "environment",
    "bridge",
    "versions",
)
"""Order of the reference page, and of findings of one severity."""


class LintRule(BaseModel):
    """One rule.

    Fields:
        severity: unless the check knows better. `error`: the job stops, hangs, or measures something else.
        since, until: first and last Megatron-Core release for which it holds; None when it holds for all.
        framework: whose jobs it is about; None for both.
        summary: when it speaks, for the list of rules.
        message, why, fix: templates that the check fills.
        proof: `raises` when Megatron-Core's own validation of the configuration refuses it.
        source: `repo@commit:path`, an issue, or a wheel.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    theme: str
    severity: Severity
    since: str | None = None
    until: str | None = None
    framework: Literal["megatron-lm", "megatron-bridge"] | None = None
    summary: str = Field(min_length=1)
    message: str = Field(min_length=1)
    why: str = Field(min_length=1)
    fix: tuple[str, ...] = Field(min_length=1)
    proof: Literal["raises"] | None = None
    source: str = Field(min_length=1)

    @property
    def versions(self) -> str:
        """For which releases it holds, in words."""
        if self.since and self.until:
            return f"Megatron-Core {self.since} to {self.until}"
        if self.since:
            return f"Megatron-Core {self.since} and newer"
        return f"Megatron-Core up to {self.until}" if self.until else "every release read (0.15 to 0.20-dev)"

    def holds_for(self, core_version: str | None) -> bool | None:
        """Whether it holds for a release; None when that depends on a version that is not known."""
        if self.since is None and self.until is None:
            return True
        if core_version is None:
            return None
        release = parse_release(core_version)
        return (self.since is None or release >= parse_release(self.since)) and (
            self.until is None or release <= parse_release(self.until)
        )

    def finding(
        self,
        values: Mapping[str, object],
        *,
        severity: Severity | None = None,
        fix: tuple[str, ...] = (),
        core_version: str | None = None,
    ) -> Finding:
        """What the rule found; one that depends on an unknown version says so, and is no error for that reason.

        Args:
            values: for the templates.
            severity: instead of the rule's own.
            fix: put before the rule's own.
            core_version: None when it is not known.
        """
        chosen, why = severity or self.severity, self.why.format_map(values)
        if self.holds_for(core_version) is None:
            why += f" Holds for {self.versions}; the version is not known here, give --megatron-version."
            chosen = Severity.WARNING if chosen is Severity.ERROR else chosen
        return Finding(
            id=self.id,
            severity=chosen,
            message=self.message.format_map(values),
            why=why,
            advice=(*fix, *(text.format_map(values) for text in self.fix)),
            source=self.source,
        )


@cache
def load_lint_rules() -> dict[str, LintRule]:
    """The rules by id, in the order of the themes and their files."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, LintRule] = {}
    for theme in THEMES:
        text = resources.files("moe_dispatch.megatron.rules").joinpath(f"{theme}.yaml").read_text(encoding="utf-8")
        for name, entry in yaml.load(text, Loader=loader).items():
            found[name] = LintRule(id=name, theme=theme, **entry)
    return found
