"""What one rank knows about itself and, if it looks for its host, about the machine: the unit that ranks compare.

Settings are those the process was started with (/proc/self/environ): what a program changes in `os.environ` later is
too late for the libraries that read it at load time (NVIDIA-NeMo/Megatron-Bridge#925).
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Finding
from moe_dispatch.site.environment import mask_secrets, recorded_environment
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.libraries import resolve_libraries
from moe_dispatch.site.model import Site
from moe_dispatch.site.rank_context import RankContext
from moe_dispatch.site.stack import stack_fingerprint

SCHEMA_VERSION = 1
_DIGEST_CHARS = 16


class HostView(BaseModel):
    """What one rank found out for all ranks of its node.

    Fields:
        gates: how far each backend comes for each of its users.
        findings: what was seen on this host beyond the gates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    site: Site
    gates: tuple[GateResult, ...] = ()
    findings: tuple[Finding, ...] = ()


class RankReport(BaseModel):
    """One rank.

    Fields:
        rank, world, local_rank, node, launcher, job: as its launcher says (`RankContext`).
        host: name of its node.
        settings: environment variables at process start that may change the exchange, secrets left out.
        versions: component -> version (`stack_fingerprint`).
        libraries: library -> file that would be loaded (`resolve_libraries`).
        view: of the machine, from the rank that looks for its host; else None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    rank: int = Field(ge=0)
    world: int = Field(ge=1)
    local_rank: int | None = None
    node: int | None = None
    launcher: str = "none"
    job: str = ""
    host: str
    settings: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str | None] = Field(default_factory=dict)
    libraries: dict[str, str] = Field(default_factory=dict)
    view: HostView | None = None

    @property
    def fingerprint(self) -> str:
        """Short name of the software: equal exactly when versions and libraries are."""
        return digest({"versions": self.versions, "libraries": self.libraries})


def start_environment(process: Path = Path("/proc/self")) -> dict[str, str]:
    """The environment that this process was started with; `os.environ` where /proc does not tell."""
    try:
        raw = (process / "environ").read_bytes()
    except OSError:
        raw = b""
    if not raw:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def report_rank(context: RankContext, environment: Mapping[str, str], view: HostView | None = None) -> RankReport:
    """This rank's report; reads files only, imports and starts nothing."""
    return RankReport(
        rank=context.rank,
        world=context.world,
        local_rank=context.local_rank,
        node=context.node,
        launcher=context.launcher,
        job=context.job,
        host=socket.gethostname(),
        settings=recorded_environment(environment),
        versions=stack_fingerprint(),
        libraries={name: mask_secrets(path) for name, path in resolve_libraries(environment).items()},
        view=view,
    )


def read_report(path: Path) -> RankReport:
    """A report that a rank wrote.

    Raises:
        UsageError: not readable, no report, or of another version of this tool.
    """
    fix = "give files that `doctor --rank-report` of this version wrote"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else f"no JSON ({error})"
        raise UsageError(f"{path} cannot be read as a rank report: {what}", fix) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(f"{path} is no rank report of schema version {SCHEMA_VERSION} (it says {version!r})", fix)
    try:
        return RankReport.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path} is a damaged rank report: {where}: {first['msg']}", fix) from error


def digest(value: object) -> str:
    """Short hash of a JSON value, equal exactly when the values are."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
