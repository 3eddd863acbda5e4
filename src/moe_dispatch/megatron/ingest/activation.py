"""Which dispatcher ran, and how strongly that is proven: no framework line says it, so evidence is ranked.

The ladder is `evidence.training.PROOF_LEVELS`; what counts for which backend is in `activation.yaml`. A configuration
alone proves nothing: frameworks replace dispatchers, and their default backend is named in runs that never use it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.evidence.training import PROOF_LEVELS, Activation, ProofLevel

TRACE_PREFIX = "moe-dispatch-trace "
"""Starts a line of our own trace; one JSON object follows: `class`, `layers`, and, once counted, `dispatch_calls` and
`combine_calls`."""
_TRACE = re.compile(re.escape(TRACE_PREFIX) + r"(\{.*\})")


class BackendEvidence(BaseModel):
    """One backend of `activation.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    class_name: str = Field(alias="class")
    provider: str
    texts: tuple[re.Pattern[str], ...] = ()
    kernels: tuple[re.Pattern[str], ...] = ()
    ambiguous: bool = False


class ActivationTable(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backends: dict[str, BackendEvidence]
    communication_kernels: re.Pattern[str]


@cache
def load_activation() -> ActivationTable:
    """Read `activation.yaml`."""
    import yaml

    text = resources.files("moe_dispatch.megatron.ingest").joinpath("activation.yaml").read_text(encoding="utf-8")
    return ActivationTable.model_validate(yaml.safe_load(text))


class ActivationReader:
    """Collects trace lines and backend texts of a log."""

    def __init__(self) -> None:
        self.found: dict[str, dict[ProofLevel, str]] = {}
        """Backend -> level -> the text that shows it."""

    def feed(self, text: str) -> None:
        """One line of the log, of any kind."""
        trace = _TRACE.search(text)
        if trace is not None:
            self._trace(trace[1])
        for name, backend in load_activation().backends.items():
            match = next((found for one in backend.texts if (found := one.search(text))), None)
            if match is not None:
                self._add(name, "backend_text", f"printed by {name} only: {match[0]}")

    def _trace(self, text: str) -> None:
        try:
            event: Any = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict):
            return
        name = next(
            (key for key, one in load_activation().backends.items() if one.class_name == event.get("class")), ""
        )
        calls = event.get("dispatch_calls"), event.get("combine_calls")
        if name and all(isinstance(count, int) and count > 0 for count in calls):
            self._add(name, "traced", f"trace: {event['class']} dispatched {calls[0]}x and combined {calls[1]}x")
        elif name:
            self._add(name, "constructed", f"trace: {event['class']} was built")

    def _add(self, name: str, level: ProofLevel, text: str) -> None:
        self.found.setdefault(name, {}).setdefault(level, text)


def prove(
    effective: str,
    found: dict[str, dict[ProofLevel, str]],
    *,
    configured: str = "",
    deduced: str = "",
) -> Activation:
    """The proof for the dispatcher that the configuration leads to.

    Args:
        effective: backend name; empty where unknown.
        found: of the log's reader, with `kernels` added by a profile.
        configured, deduced: what a configuration says of it, and why it must have been built; empty where not.
    """
    steps: dict[ProofLevel, str] = dict(found.get(effective, {}))
    if configured:
        steps["configured"] = configured
    if deduced:
        steps["deduced"] = deduced
    ranked = sorted(steps, key=PROOF_LEVELS.index, reverse=True)
    return Activation(level=ranked[0] if ranked else "none", evidence=tuple(steps[level] for level in ranked))


def contradiction(effective: str, found: dict[str, dict[ProofLevel, str]]) -> tuple[str, str] | None:
    """A backend other than `effective` that was built or called according to the evidence, with that evidence.

    Kernels that also serve other traffic, and texts of a library that is merely loaded, contradict nothing.
    """
    for name, steps in found.items():
        for level in ("traced", "constructed", "kernels"):
            strong = level in steps and not (level == "kernels" and load_activation().backends[name].ambiguous)
            if name != effective and strong:
                return name, steps[level]
    return None
