"""Everything that one run printed, collected from its files in one pass and in any order of lines and files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from moe_dispatch.evidence.training import RankMemory
from moe_dispatch.megatron.ingest.activation import ActivationReader
from moe_dispatch.megatron.ingest.dumps import Dump, DumpReader
from moe_dispatch.megatron.ingest.iterations import IterationLine, StepTime, iteration_lines, step_times
from moe_dispatch.megatron.ingest.memory import memory_line
from moe_dispatch.megatron.ingest.outcome import OutcomeReader
from moe_dispatch.megatron.ingest.scan import scan

_VERSION = re.compile(r"> (PyTorch|Megatron-Core|Transformer Engine) version \.+ (\S+)")
_START = re.compile(r"successfully loaded checkpoint .{1,4096}? at iteration (\d{1,12})\b")
_BILLIONS = re.compile(r"((?:Number of|Total number of) [a-z ]+?) in billions: +(\d+(?:\.\d+)?)")
_NCCL = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
"""Printed by NCCL itself with NCCL_DEBUG=VERSION or louder."""
_VERSION_KEYS = {"PyTorch": "torch", "Megatron-Core": "megatron_core", "Transformer Engine": "transformer_engine"}
_ABSENT_VERSION = "0.0.0"
"""What Megatron prints where Transformer Engine is not installed."""


class RunFacts:
    """The facts of one run; a consumer of `scan`.

    Fields:
        lines: (iteration, stamp) -> the fullest copy of the line.
        steps: Bridge's step-time lines, each value once.
        starts: iterations from which training went on after loading a checkpoint.
        unattributed: iteration lines without a readable number.
    """

    def __init__(self) -> None:
        self.lines: dict[tuple[int, float | None], IterationLine] = {}
        self.conflicts: list[IterationLine] = []
        self.steps: set[StepTime] = set()
        self.memory: dict[RankMemory, None] = {}
        self.versions: dict[str, str] = {}
        self.parameters: dict[str, float] = {}
        self.starts: set[int] = set()
        self.framework = ""
        self.unattributed = 0
        self.files: list[str] = []
        self._dumps = DumpReader()
        self.outcome = OutcomeReader()
        self.activation = ActivationReader()

    @property
    def dumps(self) -> list[Dump]:
        """Configurations that were printed."""
        return self._dumps.dumps

    @property
    def following(self) -> bool:
        """Inside a configuration, or behind a message whose details come next."""
        return self._dumps.following or self.outcome.following

    def read(self, paths: Iterable[Path]) -> None:
        """Read the files of the run.

        Raises:
            UsageError: a file cannot be read.
        """
        for path in paths:
            scan(path, self)
            self._dumps.close()
            self.files.append(path.name)

    def feed(self, text: str, rank: int | None) -> None:
        """One line; a physical line may hold pieces of several ranks, so every reader looks at it."""
        if "elapsed time per iteration" in text:
            self._iterations(text)
        elif "MODEL_TFLOP/s/GPU" in text:
            self.framework = "megatron-bridge"
            self.steps.update(step_times(text))
        else:
            self._rest(text, rank)

    def _iterations(self, text: str) -> None:
        found = iteration_lines(text)
        if not found:
            self.unattributed += 1
        if "MODEL_TFLOP/s/GPU" in text:
            self.steps.update(step_times(text))
        for line in found:
            key = line.iteration, line.stamp
            known = self.lines.get(key)
            if known is None:
                self.lines[key] = line
            elif known != line:
                self._merge(key, known, line)

    def _merge(self, key: tuple[int, float | None], known: IterationLine, line: IterationLine) -> None:
        """Two copies of a line, one of them cut: the fuller one. Two lines that contradict each other: a restart."""
        if known.agrees(line):
            self.lines[key] = max(known, line, key=lambda one: one.known)
        elif line not in self.conflicts:
            self.conflicts.append(line)

    def _rest(self, text: str, rank: int | None) -> None:
        self._dumps.feed(text)
        if self._dumps.following:
            if self._dumps.stage != "arguments":
                self.framework = "megatron-bridge"
            return
        memory = memory_line(text)
        if memory is not None:
            self.memory[memory] = None
        elif version := _VERSION.search(text):
            known = "none" if version[2] == _ABSENT_VERSION else version[2]
            self.versions.setdefault(_VERSION_KEYS[version[1]], known)
            self.framework = self.framework or "megatron-lm"
        elif nccl := _NCCL.search(text):
            self.versions.setdefault("nccl", nccl[1])
        elif start := _START.search(text):
            self.starts.add(int(start[1]))
        elif billions := _BILLIONS.search(text):
            self.parameters.setdefault(billions[1], float(billions[2]) * 1e9)
        else:
            self.activation.feed(text)
            self.outcome.feed(text, rank)
