"""The command: forms of input, exit codes, JSON, the store, and bad input with one message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ingest_logs import megatron_lm, real, written

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.store import Store
from moe_dispatch.flow.ingest import IngestOptions, ingest, read_environment, run_files

COMMAND = [sys.executable, "-m", "moe_dispatch.cli.main", "ingest"]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)


def test_json_is_the_records(tmp_path: Path) -> None:
    done = run(real("alltoall-a"), real("deepep-missing"), "--store", tmp_path / "store", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [one["status"] for one in document["records"]] == ["ok", "unavailable"]
    assert set(document["findings"]) == {one["run_id"] for one in document["records"]}
    stored = Store(tmp_path / "store").read_all()
    assert sorted(one.choice.dispatcher for one in stored) == ["alltoall", "deepep"]


def test_a_replaced_dispatcher_is_an_error(tmp_path: Path) -> None:
    log = written(tmp_path, megatron_lm(moe_flex_dispatcher_backend="hybridep"))
    done = run(log)
    assert done.returncode == 1
    assert "hybridep was requested, and alltoall is in effect" in done.stdout


def test_people_see_arm_status_and_reason() -> None:
    done = run(real("alltoall-a"), real("hybridep-truncated"), "--gpu", "h200")
    assert done.returncode == 0, done.stderr
    assert "642.4" in done.stdout
    assert "iteration 16 of 24" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.log"], "log none.log does not exist"),
        ([real("alltoall-a"), "--window", "9-3"], "window '9-3'"),
        ([real("alltoall-a"), "--gpu", "h900"], "h900"),
        ([real("alltoall-a"), "--config", "none.yaml"], "none.yaml cannot be read"),
        ([real("alltoall-a"), "--nsys", "none.sqlite"], "profile none.sqlite does not exist"),
        ([real("alltoall-a"), "--env", "none.env"], "none.env cannot be read"),
        ([real("alltoall-a"), "--arm", "alltoal"], "alltoal"),
        ([real("alltoall-a"), real("hybridep-a"), "--config", "x.yaml"], "--config belongs to one run"),
    ],
)
def test_bad_input_is_one_message(arguments: list[str | Path], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert "fix: " in done.stderr
    assert "Traceback" not in done.stderr


def test_each_file_of_a_folder_is_a_run_and_rank_folders_are_one(tmp_path: Path) -> None:
    (tmp_path / "arms").mkdir()
    written(tmp_path / "arms", megatron_lm(), "a.log")
    written(tmp_path / "arms", megatron_lm(), "b.out")
    (tmp_path / "arms" / "notes.md").write_text("not a log")
    ranks = tmp_path / "arms" / "torchrun" / "attempt_0"
    for rank in range(2):
        (ranks / str(rank)).mkdir(parents=True)
        written(ranks / str(rank), megatron_lm(), "stdout.log")
    groups = run_files([str(tmp_path / "arms")])
    assert sorted(len(group) for group in groups) == [1, 1, 2]
    assert len(run_files([str(tmp_path / "arms")], together=True)) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no"):
        run_files([str(tmp_path / "empty")])


def test_saved_configuration_beside_the_log_is_read(tmp_path: Path) -> None:
    log = written(tmp_path, [line for line in megatron_lm() if " iteration " in line])
    (tmp_path / "ConfigContainer.yaml").write_text("model: {moe_token_dispatcher_type: alltoall}\n")
    (one,) = ingest([str(log)], IngestOptions()).records
    assert (one.status.value, one.choice.dispatcher) == ("ok", "alltoall")


def test_environment_makes_unknown_fields_known_and_keeps_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "env.txt"
    path.write_text("export CUDA_DEVICE_MAX_CONNECTIONS=1\nHF_TOKEN=hf_abcdefghijklmnop\nNCCL_DEBUG='INFO'\n")
    assert read_environment(path) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_DEBUG": "INFO"}
    (one,) = ingest([str(real("alltoall-a"))], IngestOptions(environment=path)).records
    assert one.contract.stack["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert one.contract.stack["NCCL_NVLS_ENABLE"] == "unset"
    assert "hf_" not in one.model_dump_json()


def test_a_log_twice_is_one_launch_of_the_store(tmp_path: Path) -> None:
    for _ in range(2):
        ingest([str(real("alltoall-a"))], IngestOptions(), tmp_path / "store")
    stored = Store(tmp_path / "store").read_all()
    assert len({(one.session, one.processes, one.launch) for one in stored}) == 1
