"""`advise` and `card` as a person and a script call them, and data that is edited without touching Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

SOURCE = Path(__file__).parents[2] / "src" / "moe_dispatch"
COMMAND = [sys.executable, "-m", "moe_dispatch.cli.main"]


def run(*arguments: str, code: int = 0, package: Path | None = None, cwd: Path | None = None) -> str:
    environment = dict(os.environ) | ({"PYTHONPATH": str(package)} if package else {})
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120, env=environment, cwd=cwd
    )
    assert done.returncode == code, done.stderr
    if code == 0:
        assert done.stderr == ""
    return done.stdout if code == 0 else done.stdout + done.stderr


def advise(*arguments: str, package: Path | None = None) -> Any:
    return json.loads(run("advise", *arguments, "--json", package=package))


Q30 = ("qwen3-30b-a3b", "--site", "h100", "--nodes", "2", "--ep", "16")


def test_the_page_for_people_states_what_matters_and_fits_a_terminal() -> None:
    page = run("advise", *Q30)
    for sentence in (
        "candidates, not winners",
        "Order of authority: measured here, a matched published A/B, a recipe in force, this guide.",
        "Ceiling: what a dispatcher of no cost would save",
        "Confidence in this order:",
        "Measure next",
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8",
        "16 (Megatron-Core 0.16 and 0.17)",
        "Benchmarks only, in every arm: --moe-router-force-load-balancing",
        "moe-dispatch plan qwen3-30b-a3b --ep 16 --site h100 --nodes 2 --out DIR",
    ):
        assert sentence in " ".join(page.split())
    to_copy = ("Megatron-LM:", "Bridge:", "Bridge harness:", "Benchmarks only", "moe-dispatch ", "@", "https://")
    long = [line for line in page.splitlines() if len(line) > 80 and not any(mark in line for mark in to_copy)]
    assert long == []


def test_the_document_for_machines_has_the_same_content() -> None:
    document = advise(*Q30, "--exposed-share", "0.2")
    assert document["ceiling"]["speedup"] == pytest.approx(1.25)
    assert document["candidates"][0]["candidate"]["choice"]["dispatcher"] == "alltoall"
    assert document["pairs"][0]["differences"]
    assert document["confidence"]["counts"]
    assert "verdict" not in document


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "advise needs a WORKLOAD"),
        (("qwen3-30b-a3", "--ep", "8", "--site", "h100"), 2, "did you mean qwen3-30b-a3b"),
        (("qwen3-30b-a3b", "--ep", "8", "--site", "h10"), 2, "unknown site 'h10'"),
        ((*Q30, "--stage", "tune"), 2, "bring-up, profile, tuned"),
        ((*Q30, "--exposed-share", "20"), 2, "0.2 means twenty percent"),
        ((*Q30, "--exposed-share", "0.2", "--record", "r"), 2, "give one of them"),
        ((*Q30, "--record", "no-such"), 2, "--record no-such"),
        ((*Q30, "--explain", "hoper-order"), 2, "did you mean hopper-order"),
        ((*Q30, "--megatron-version", "new"), 2, "not a release number"),
        (("qwen3-30b-a3b", "--ep", "8", "--nodes", "2"), 2, "--nodes 2 needs --site"),
    ],
)
def test_bad_input_gives_one_message(arguments: tuple[str, ...], code: int, message: str) -> None:
    said = run("advise", *arguments, code=code)
    assert message in said
    assert "Traceback" not in said


def test_explain_with_and_without_a_workload() -> None:
    assert "refuted by" in run("advise", "--explain", "hopper-order")
    assert json.loads(run("advise", *Q30, "--explain", "nvl72-domain-aware-first", "--json"))["failing"] == ["nvlink"]
    assert "holds here" in run("advise", *Q30, "--explain", "domain-ranks")


def test_this_machine_is_advised_when_no_site_is_named() -> None:
    document = advise("qwen3-30b-a3b", "--ep", "2")
    assert document["candidates"][0]["candidate"]["included"]


def test_the_ceiling_comes_from_a_record(tmp_path: Path) -> None:
    record = {
        "run_id": "r1",
        "session": "s",
        "stage": "training",
        "launch": 0,
        "choice": {"dispatcher": "alltoall"},
        "status": "unproven",
        "reason": "no proof",
        "contract": {"workload": {}, "measure": {}, "site": {}, "stack": {}},
        "training": {
            "activation": {"level": "none"},
            "window": {"rule": "last 10"},
            "exposed": {
                "device": 0,
                "span_ms": 100.0,
                "communication_ms": 40.0,
                "exposed_ms": 25.0,
                "share": 0.25,
                "kernels": {},
            },
        },
        "provenance": {"created": "2026-12-01T00:00:00Z", "tool_version": "0", "host": "h"},
    }
    (tmp_path / "record.json").write_text(json.dumps({"schema_version": 1, **record}))
    found = advise(*Q30, "--record", str(tmp_path))["ceiling"]
    assert (found["share"], found["basis"]) == (0.25, "record")
    assert "record r1" in found["statement"]


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    shutil.copytree(SOURCE, tmp_path / "moe_dispatch", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_one_rule_edited_in_the_data_changes_the_advice(package_copy: Path) -> None:
    file = package_copy / "moe_dispatch" / "decide" / "guide_rules.yaml"
    document = yaml.safe_load(file.read_text())
    (rule,) = [one for one in document["rules"] if one["id"] == "hopper-order"]
    rule["order"] = ["ncclep", "hybridep", "deepep"]
    rule["text"] = "another reason"
    file.write_text(yaml.safe_dump(document))
    changed = advise(*Q30, package=package_copy)
    names = [one["candidate"]["choice"]["dispatcher"] for one in changed["candidates"]]
    assert names[:4] == ["alltoall", "ncclep", "hybridep", "deepep"]
    assert "another reason" in json.dumps(changed["candidates"][1])


def test_a_model_and_a_gpu_are_added_without_python(package_copy: Path) -> None:
    hardware = package_copy / "moe_dispatch" / "site" / "hardware.yaml"
    entry = yaml.safe_load(hardware.read_text())["gb200"] | {
        "title": "X900 rack",
        "match": ["X900"],
        "nvlink_domain": 144,
    }
    hardware.write_text(hardware.read_text() + yaml.safe_dump({"x900": entry}))
    models = package_copy / "moe_dispatch" / "workload" / "models" / "new.yaml"
    shape = {"hidden": 1024, "num_layers": 4, "num_moe_layers": 4, "num_experts": 288, "topk": 4, "moe_ffn_hidden": 512}
    models.write_text(yaml.safe_dump({"models": [{"name": "newcomer", "title": "N", "source": "a/b@c:d", **shape}]}))
    document = advise("newcomer", "--site", "x900", "--nodes", "36", "--ep", "144", package=package_copy)
    assert document["site"] == "x900x36"
    names = [one["candidate"]["choice"]["dispatcher"] for one in document["candidates"]]
    assert names[1] == "hybridep"
    said = {one["name"]: one["value"] for one in document["candidates"][1]["environment"]}
    assert said["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "144"
    assert document["recipes"] == []


def test_card_is_printed_or_written(tmp_path: Path) -> None:
    printed = yaml.safe_load(run("card", "gpt-oss-120b"))
    assert printed["subject"] == "gpt-oss-120b"
    out = tmp_path / "new" / "card.yaml"
    done = subprocess.run(
        [*COMMAND, "card", "gpt-oss", "--out", str(out)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == ""
    assert yaml.safe_load(out.read_text())["kind"] == "family"
    assert json.loads(run("card", "gpt-oss-120b", "--json"))["kind"] == "model"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("card", "gpt-os-120b"), "did you mean gpt-oss-120b"),
        (("card", "gpt-oss-120b", "--own", "absent"), "no directory of records"),
    ],
)
def test_a_card_of_nothing_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in run(*arguments, code=2)
