"""How a run ended, from the messages of all its ranks: the one that explains the end, and those that follow from it.

The order of lines in a merged log is not the order of events, so messages are believed by kind (`messages.yaml`), and
the first of a kind counts.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.evidence.training import RunOutcome
from moe_dispatch.site.environment import mask_secrets
from moe_dispatch.site.gate_classify import diagnose_report

_MAX_TEXT = 300
_SHAPES_WITHIN = 12
"""Lines after a recompute mismatch in which torch prints the saved and the recomputed shape."""
_SHAPE = re.compile(r"\b(saved|recomputed)\b[^\[\n]{0,60}\[(\d+(?:, ?\d+)*)\]")
_MODULE = re.compile(r"deep_ep|hybrid_ep|nccl_ep|transformer_engine")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_SWALLOWED = "Megatron words every import failure like this, so the package may be there and broken: {text}"


class Message(BaseModel):
    """One entry of `messages.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    pattern: re.Pattern[str]
    status: RunStatus | None = None
    backend: str = ""
    reason: str = ""
    fix: str = ""
    fallout: bool = False
    source: str = ""


class Seen(NamedTuple):
    """The first message of a kind."""

    kind: int
    text: str
    rank: int | None


class Ending(NamedTuple):
    """What the messages say about the end; `status` is None where they explain nothing."""

    status: RunStatus | None
    reason: str
    fix: str
    outcome: RunOutcome


@cache
def load_messages() -> tuple[Message, ...]:
    """Read `messages.yaml`."""
    import yaml

    text = resources.files("moe_dispatch.megatron.ingest").joinpath("messages.yaml").read_text(encoding="utf-8")
    return tuple(Message.model_validate(entry) for entry in yaml.safe_load(text)["messages"])


class OutcomeReader:
    """Collects messages; `following` is true where shapes are about to be printed."""

    def __init__(self) -> None:
        self._first: dict[int, Seen] = {}
        self._shapes: dict[str, str] = {}
        self._wanted_lines = 0

    @property
    def following(self) -> bool:
        """A recompute mismatch was just read."""
        return self._wanted_lines > 0

    @property
    def fell_back(self) -> bool:
        """Whether the framework said that it replaced the dispatcher."""
        return any(load_messages()[kind].status is RunStatus.FELL_BACK for kind in self._first)

    @property
    def shapes(self) -> dict[str, str]:
        """`saved` and `recomputed` shapes of a recompute mismatch, as printed."""
        return dict(self._shapes)

    def feed(self, text: str, rank: int | None) -> None:
        """One line of the log, of any kind."""
        if self._wanted_lines:
            self._wanted_lines -= 1
            for which, shape in _SHAPE.findall(text):
                self._shapes.setdefault(which, f"[{shape}]")
        for kind, message in enumerate(load_messages()):
            match = message.pattern.search(text)
            if match is None:
                continue
            if kind not in self._first:
                self._first[kind] = Seen(kind, mask_secrets(match["text"].strip()[:_MAX_TEXT]), rank)
            if message.id == "recompute-mismatch" and not self._shapes:
                self._wanted_lines = _SHAPES_WITHIN
            return

    def ending(self, *, measured: bool, finished: bool) -> Ending:
        """What ended the run.

        Args:
            measured: every iteration of the window was printed; being stopped from outside then took nothing away.
            finished: and the last planned one too; then every message came after the work or did not stop it, but for
                that of a replaced dispatcher.
        """
        messages = load_messages()
        seen = [self._first[kind] for kind in sorted(self._first)]
        causes = [one for one in seen if not messages[one.kind].fallout]
        if finished:
            causes = [one for one in causes if messages[one.kind].status is RunStatus.FELL_BACK]
        elif measured:
            causes = [one for one in causes if messages[one.kind].status is not RunStatus.TRUNCATED]
        fallout = tuple(one.text for one in seen if one not in causes[:1])
        if not causes:
            return Ending(None, "", "", RunOutcome(fallout=fallout))
        root = causes[0]
        message = messages[root.kind]
        reason_class, reason, fix = _explain(message, root.text)
        if message.id == "recompute-mismatch" and len(self._shapes) == 2:
            reason += f": saved {self._shapes['saved']}, recomputed {self._shapes['recomputed']}"
        outcome = RunOutcome(reason_class=reason_class, root=root.text, rank=root.rank, fallout=fallout)
        return Ending(message.status, reason, fix, outcome)


def _explain(message: Message, text: str) -> tuple[str, str, str]:
    """Class, reason and fix; the classes of failed imports are those of the gate."""
    if message.status is RunStatus.UNAVAILABLE and not message.reason:
        if message.id != "import-failed":
            fix = "moe-dispatch doctor imports the same symbols and shows the real error"
            return message.id, _SWALLOWED.format(text=text), fix
        kind, _, words = text.partition(": ")
        module = found[0] if (found := _MODULE.search(words)) else "the backend's module"
        missing = _NO_MODULE.search(words)
        error = {"type": kind, "message": words, "missing_module": missing[1] if missing else None, "traceback": ""}
        report = {"step": module, "top": module, "error": error, "found": missing is None, "offers": [], "absent": []}
        diagnosis = diagnose_report(report, f"install or rebuild what provides {module}")
        return diagnosis.reason_class, diagnosis.reason, diagnosis.fix
    return message.id, f"{message.reason}: {text}", message.fix
