"""The CUDA path: stream events, allocator memory, NCCL. One rank on one GPU is enough to run all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bench_helpers import ALLTOALL, tiny_plan

from moe_dispatch.bench.run import BenchRequest, run_bench
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.evidence.store import Store
from moe_dispatch.workload.model import ModelShape

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SHAPE = ModelShape(
    name="small", hidden=1024, num_layers=1, num_moe_layers=1, num_experts=16, topk=4, moe_ffn_hidden=512
)
TOKENS = 2048


@pytest.mark.parametrize("level", ["exchange", "layer"])
def test_one_gpu_is_measured_with_events_and_allocator_memory(tmp_path: Path, level: str) -> None:
    plan = tiny_plan(
        ALLTOALL, level=level, device="cuda", dtype="bfloat16", world=1, model=SHAPE, tokens_per_rank=TOKENS, warmup=3
    )
    request = BenchRequest(plan=plan, launches=1, nproc=1, work_dir=str(tmp_path / "work"))
    (record,) = run_bench(request, Store(tmp_path / "store"))
    assert record.status is RunStatus.OK, record.reason
    assert record.contract.site["transport"] == "nccl"
    assert record.contract.stack["nccl"] != "none"
    assert record.memory is not None
    assert record.memory.allocated_peak_bytes is not None
    # What was reserved before and not in use is filled first, so reserved may grow by less than allocated.
    assert record.memory.reserved_peak_bytes
    assert record.memory.device_used_delta_bytes
    rows_bytes = TOKENS * SHAPE.topk * SHAPE.hidden * 2
    assert rows_bytes <= record.memory.allocated_peak_bytes
    assert record.performance is not None
    for iteration in record.performance.iterations:
        parts = iteration.latency_us
        assert 0 < parts["forward"] < parts["total"] <= parts["forward"] + parts["backward"] + 1.0
