"""A RunRecord cannot say what did not happen, and its exported schema is current."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from evidence_records import record
from pydantic import ValidationError

from moe_dispatch.evidence.record import Correctness, Iteration, Provenance, RunRecord, RunStatus
from moe_dispatch.evidence.schema import run_record_schema, schema_text

EXPORTED = Path(__file__).parents[2] / "docs" / "schema" / "run-record.schema.json"


@pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.OK])
def test_only_ok_carries_performance(status: RunStatus) -> None:
    with pytest.raises(ValidationError, match="must not carry performance"):
        record(status=status, reason="because")
    kept = record(status=status, reason="because", performance=None, partial=record().performance)
    assert kept.partial is not None
    with pytest.raises(ValidationError, match="needs a reason"):
        record(status=status, performance=None)


def test_ok_needs_samples_and_a_passed_oracle() -> None:
    with pytest.raises(ValidationError, match="needs performance"):
        record(performance=None)
    with pytest.raises(ValidationError, match="correctness"):
        record(correctness=Correctness(passed=False))


@pytest.mark.parametrize(
    "latency_us",
    [{"total": 0.0}, {"total": -1.0}, {"total": float("nan")}, {"total": float("inf")}, {"forward": 1.0}, {}],
)
def test_a_time_that_cannot_be_is_no_sample(latency_us: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="latency_us"):
        Iteration(pass_index=0, latency_us=latency_us, slowest_rank=0)


def test_correctness_is_not_passed_over_a_failed_check() -> None:
    with pytest.raises(ValidationError, match="failed checks: combine"):
        Correctness(passed=True, checks={"dispatch": True, "combine": False})


def test_only_allowed_variables_are_kept_and_secrets_masked() -> None:
    given = {
        "NCCL_DEBUG": "INFO",
        "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "128",
        "NCCL_IB_PKEY": "1",
        "UCX_PROXY": "http://me:hunter22@proxy:80",
        "HF_TOKEN": "x",
        "NCCL_AUTH_TOKEN": "x",
        "HOME": "/root",
    }
    made = Provenance(
        created=datetime.now(timezone.utc),
        tool_version="0",
        host="a",
        environment=given,
        command="moe-dispatch select m --note api_key=abcdef123",
    )
    assert made.environment == {
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_PKEY": "1",
        "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "128",
        "UCX_PROXY": "http://***@proxy:80",
    }
    assert "abcdef123" not in made.command


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="extra"):
        RunRecord.model_validate(record().model_dump() | {"surprise": 1})


def test_exported_schema_is_current() -> None:
    assert EXPORTED.read_text(encoding="utf-8") == schema_text(), (
        "run: python -m moe_dispatch.evidence.schema docs/schema/run-record.schema.json"
    )


def test_schema_names_every_field_and_status() -> None:
    schema = run_record_schema()
    assert set(schema["properties"]) == set(RunRecord.model_fields)
    assert set(schema["$defs"]["RunStatus"]["enum"]) == {status.value for status in RunStatus}
    assert {"run_id", "choice", "status", "contract", "provenance"} <= set(schema["required"])


def test_schema_command_writes_a_file(tmp_path: Path) -> None:
    target = tmp_path / "schema.json"
    subprocess.run([sys.executable, "-m", "moe_dispatch.evidence.schema", str(target)], check=True)
    assert json.loads(target.read_text()) == run_record_schema()
