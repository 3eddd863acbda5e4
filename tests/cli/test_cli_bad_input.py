"""Bad input: one message with its fix, no traceback, nothing started, the right exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "moe_dispatch.cli.main"]

TINY = """\
model: {name: tiny, hidden: 64, num_layers: 2, num_moe_layers: 2, num_experts: 8, topk: 2, moe_ffn_hidden: 32}
layout: {ep: 2}
seq_length: 64
"""


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120, cwd=cwd
    )


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The message of an expected refusal; checks its form."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("moe-dispatch: ")]
    assert len(lines) == 1, done.stderr
    return done.stderr


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def test_unknown_model_names_close_matches(tmp_path: Path) -> None:
    said = refused(run("select", "qwen3-30b-a3", "--ep", "4", cwd=tmp_path), 2)
    assert "unknown model 'qwen3-30b-a3'" in said
    assert "qwen3-30b-a3b" in said


def test_config_that_is_no_moe_names_the_fields(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 4096}))
    said = refused(run("select", "config.json", "--ep", "4", cwd=tmp_path), 2)
    assert "num_local_experts" in said
    assert "llama" in said


def test_ep_that_does_not_divide_the_experts(tmp_path: Path) -> None:
    said = refused(run("select", "qwen3-30b-a3b", "--ep", "5", cwd=tmp_path), 2)
    assert "EP=5 does not divide the 128 experts" in said


def test_ep_that_does_not_divide_the_ranks(tiny: Path, tmp_path: Path) -> None:
    said = refused(run("select", tiny, "--nproc", "3", cwd=tmp_path), 2)
    assert "EP=2 needs 2 ranks" in said


def test_top_k_beyond_the_experts(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(TINY.replace("topk: 2", "topk: 9"))
    said = refused(run("select", "w.yaml", cwd=tmp_path), 2)
    assert "topk=9 is larger than num_experts=8" in said


@pytest.mark.parametrize("routing", ["bogus", "zipf:x", "zipf:-1", "trace:nowhere.npy"])
def test_nonsense_routing(tiny: Path, tmp_path: Path, routing: str) -> None:
    refused(run("select", tiny, "--routing", routing, cwd=tmp_path), 2)
    refused(run("select", tiny, "--skew", routing, cwd=tmp_path), 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dispatcher", "hierarchicl"], "hierarchical"),
        (["--dispatcher", "hierarchical:chunks=0"], "chunks"),
        (["--launches", "0"], "--launches"),
        (["--threshold", "2"], "--threshold"),
        (["--budget", "-1"], "--budget"),
        (["--nnodes", "2"], "--rdzv-endpoint"),
        (["--nnodes", "2", "--rdzv-endpoint", "nohost"], "HOST:PORT"),
        (["--node-rank", "1"], "--nnodes"),
        (["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "--node-rank", "-1"], "--node-rank"),
        (["--nproc", "0"], "--nproc"),
        (["--master-port", "70000"], "--master-port"),
        (["--budget", "inf"], "--budget"),
        (["--ranks-per-domain", "0"], "--ranks-per-domain"),
        (["--precision", "fp8"], "fp8"),
        (["--precision", "int3"], "precision"),
        (["--site", "h1000"], "h100"),
        (["--skew", "force_balanced"], "--skew"),
        (["--ranks-per-domain", "3"], "ranks_per_domain=3"),
        (["--core-version", "new"], "new"),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, list) else "",
)
def test_impossible_options(tiny: Path, tmp_path: Path, options: list[str], said: str) -> None:
    code = 1 if options[-1] == "fp8" else 2
    assert said in refused(run("select", tiny, *options, cwd=tmp_path), code)


def test_resume_without_a_session(tiny: Path, tmp_path: Path) -> None:
    assert "no session" in refused(run("select", tiny, "--resume", "nothing", cwd=tmp_path), 1)


def test_errors_as_json_are_one_document(tiny: Path, tmp_path: Path) -> None:
    done = run("select", tiny, "--ep", "3", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == ""
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "WorkloadError"
    assert error["exit_code"] == 2


def test_store_that_is_a_file(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    assert "taken" in refused(run("select", tiny, "--store", "taken", cwd=tmp_path), 1)


def test_output_directory_that_is_a_file(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    said = refused(run("select", tiny, "--store", "s", "--out", "taken", cwd=tmp_path), 1)
    assert "taken" in said
    assert "--out" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a read-only file system needs root")
def test_read_only_store(tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "ro"
    store.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "none", str(store)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    try:
        said = refused(run("select", tiny, "--store", store, cwd=tmp_path), 1)
    finally:
        subprocess.run(["umount", str(store)], check=True)
    assert "read-only" in said.lower()


@pytest.mark.gloo
def test_port_in_use_is_named(tiny: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(run("select", tiny, "--master-port", str(port), "--out", "o", cwd=tmp_path), 1)
    assert str(port) in said
    assert "in use" in said


@pytest.mark.parametrize("command", ["compare", "report"])
def test_records_that_do_not_exist(tmp_path: Path, command: str) -> None:
    assert "nowhere" in refused(run(command, "nowhere", cwd=tmp_path), 1)
    (tmp_path / "empty").mkdir()
    assert "no records" in refused(run(command, "empty", cwd=tmp_path), 1)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["emit", "deepp"], 2, "deepep"),
        (["emit", "deepep", "--knob", "num_sms=3"], 2, "num_sms"),
        (["emit", "deepep", "--knob", "num_sms"], 2, "name=value"),
        (["emit", "deepep", "--core-version", "0.10"], 2, "0.10"),
        (["emit", "deepep", "--ep", "8"], 2, "--workload"),
        (["emit", "deepep", "--nodes", "2"], 2, "--site"),
        (["hardware", "h1000"], 2, "h100"),
        (["bench", "qwen3-30b-a3b", "--ep", "4", "--level", "training"], 2, "layer"),
        (["bench", "qwen3-30b-a3b", "--ep", "4", "--visits", "0"], 2, "--visits"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_other_commands(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    assert said in refused(run(*arguments, cwd=tmp_path), code)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"expert_ids": [[0, 1, 2]]}, "top-2"),
        ({"expert_ids": [[0, 9]]}, "0..7"),
        ({"expert_ids": [[0, 0]]}, "twice"),
        ({"expert_ids": [[0, 1], [2]]}, "different lengths"),
        ({"expert_ids": [[0, 1], [1, 2]], "probs": [[0.5], [0.1, 0.2]]}, "probs"),
        ({"expert_ids": [[0, 1]], "probs": "x"}, "probs"),
        ({"expert_ids": [[0, 1]], "probs": [[float("nan"), 1.0]]}, "finite"),
        ({"loads": [1, 2, 3]}, "8"),
        ({"loads": "x"}, "neither"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_trace_that_does_not_fit_is_refused_before_anything_starts(
    tiny: Path, tmp_path: Path, content: dict[str, object], said: str
) -> None:
    (tmp_path / "t.json").write_text(json.dumps(content))
    for option in ("--routing", "--skew"):
        message = refused(run("select", tiny, option, "trace:t.json", cwd=tmp_path), 2)
        assert said.replace("0..7", "-1..7") in message
        assert "probing" not in message


def test_broken_torch_is_named_with_its_fix(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "shim" / "torch").mkdir(parents=True)
    (tmp_path / "shim" / "torch" / "__init__.py").write_text("raise ImportError('libtorch is elsewhere')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "shim")}
    for command in ("select", "bench"):
        done = subprocess.run(
            [*COMMAND, command, str(tiny)], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment
        )
        said = refused(done, 1)
        assert "libtorch is elsewhere" in said
        assert "moe-dispatch[torch]" in said


@pytest.mark.gloo
def test_interface_that_does_not_exist(tiny: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "nowhere0"}
    done = subprocess.run(
        [*COMMAND, "bench", str(tiny)], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment
    )
    assert "no network interface 'nowhere0'" in refused(done, 1)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_cannot_be_written(options: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "models", *options], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "the output cannot be written" in done.stderr
