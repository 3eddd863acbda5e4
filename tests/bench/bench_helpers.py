"""Small plans and a store in memory for the bench tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moe_dispatch.bench.plan import ArmPlan, BenchPlan
from moe_dispatch.core.choice import Choice
from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.workload.model import ModelShape

TINY = ModelShape(name="tiny", hidden=16, num_layers=1, num_moe_layers=1, num_experts=4, topk=2, moe_ffn_hidden=8)
ALLTOALL = ArmPlan(choice=Choice(dispatcher="alltoall"), target="moe_dispatch.dispatch.alltoall:AllToAllDispatcher")
HIERARCHICAL = ArmPlan(
    choice=Choice(dispatcher="hierarchical"), target="moe_dispatch.dispatch.hierarchical:HierarchicalDispatcher"
)


class MemoryStore:
    """Keeps records and the names of their files."""

    def __init__(self) -> None:
        self.records: list[RunRecord] = []
        self.files: dict[str, dict[str, bytes]] = {}

    def check_writable(self) -> None:
        pass

    def write(self, record: RunRecord, files: Mapping[str, bytes | Path] | None = None) -> None:
        self.records.append(record)
        self.files[record.run_id] = {
            name: content if isinstance(content, bytes) else content.read_bytes()
            for name, content in (files or {}).items()
        }

    def read_all(self) -> list[RunRecord]:
        return list(self.records)


def faulty(name: str) -> ArmPlan:
    """The arm of one faulty backend."""
    return ArmPlan(choice=Choice(dispatcher=name), target=f"faulty_backends:{name}")


def tiny_plan(*arms: ArmPlan, **changes: object) -> BenchPlan:
    """Two ranks, 32 tokens, a second at most."""
    fields: dict[str, object] = {
        "session": "test",
        "stage": "screen",
        "launch": 0,
        "level": "exchange",
        "arms": arms,
        "model": TINY,
        "world": 2,
        "tokens_per_rank": 32,
        "routings": ("force_balanced",),
        "dtype": "float32",
        "warmup": 1,
        "visits": 2,
        "iterations": 4,
        "arm_timeout_s": 60.0,
    }
    return BenchPlan.model_validate(fields | changes)
