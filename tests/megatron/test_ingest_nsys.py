"""Profiles: kernel names as proof, and the exposed share from unions of intervals."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest
from ingest_logs import megatron_lm, record, written

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.record import RunStatus
from moe_dispatch.megatron.ingest.nsys import read_profile

COMPUTE, HYBRID = "void gemm_kernel<float>(int)", "void hybrid_ep::dispatch_kernel<128>(args)"
SEND, REDUCE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
MS = 1_000_000


def profile(folder: Path, kernels: Iterable[tuple[float, float, str] | tuple[float, float, str, int]]) -> Path:
    """An export with kernels (start ms, end ms, name, device 0)."""
    path = folder / "profile.sqlite"
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL "
        '(start INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER, demangledName INTEGER, shortName INTEGER)'
    )
    names: dict[str, int] = {}
    for start, end, name, *device in kernels:
        identity = names.setdefault(name, len(names) + 1)
        row = (round(start * MS), round(end * MS), device[0] if device else 0, 7, identity, identity)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", row)
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(identity, name) for name, identity in names.items()])
    database.commit()
    database.close()
    return path


def test_exposed_is_communication_without_compute(tmp_path: Path) -> None:
    found = read_profile(
        profile(tmp_path, [(0, 10, COMPUTE), (8, 14, HYBRID), (12, 16, HYBRID), (20, 30, COMPUTE), (22, 24, HYBRID)])
    )
    exposed = found.exposed["hybridep"]
    assert exposed.span_ms == 30
    assert exposed.communication_ms == 10  # the union of 8-16 and 22-24
    assert exposed.exposed_ms == 6  # 10-16; the rest lies under compute
    assert exposed.share == pytest.approx(0.2)
    assert exposed.kernels == {"void hybrid_ep::dispatch_kernel<128>": 3}
    assert not exposed.ambiguous


def test_other_communication_hides_nothing_and_counts_nowhere(tmp_path: Path) -> None:
    found = read_profile(profile(tmp_path, [(0, 4, COMPUTE), (4, 10, HYBRID), (4, 10, REDUCE)]))
    assert found.exposed["hybridep"].exposed_ms == 6
    assert list(found.backends) == ["hybridep"]


def test_worst_device_is_reported(tmp_path: Path) -> None:
    found = read_profile(
        profile(tmp_path, [(0, 9, COMPUTE, 0), (9, 10, HYBRID, 0), (0, 5, COMPUTE, 3), (5, 10, HYBRID, 3)])
    )
    assert (found.exposed["hybridep"].device, found.exposed["hybridep"].share) == (3, 0.5)


def test_send_receive_kernels_may_serve_others_too(tmp_path: Path) -> None:
    found = read_profile(profile(tmp_path, [(0, 4, COMPUTE), (4, 10, SEND)]))
    assert found.exposed["alltoall"].ambiguous


def test_kernels_prove_the_dispatcher_of_a_log(tmp_path: Path) -> None:
    flex = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    path = profile(tmp_path, [(0, 9, COMPUTE), (9, 10, HYBRID)])
    one = record(written(tmp_path, megatron_lm(**flex)), profile=path)
    assert one.training is not None
    assert one.training.activation.level == "kernels"
    assert one.training.exposed is not None
    assert one.training.exposed.share == pytest.approx(0.1)


def test_kernels_of_another_backend_contradict_the_log(tmp_path: Path) -> None:
    path = profile(tmp_path, [(0, 9, COMPUTE), (9, 10, HYBRID)])
    one = record(written(tmp_path, megatron_lm()), profile=path)
    assert one.status is RunStatus.FELL_BACK
    assert "hybridep ran" in one.reason


def test_profile_without_kernels_or_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no kernels"):
        read_profile(profile(tmp_path, []))
    empty = tmp_path / "other.sqlite"
    sqlite3.connect(empty).close()
    with pytest.raises(UsageError, match="nsys export"):
        read_profile(empty)
    with pytest.raises(UsageError, match="does not exist"):
        read_profile(tmp_path / "none.sqlite")
