import json
import subprocess
import sys

import pytest

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.workload import load_workload


def test_a_name_and_ep_are_enough():
    workload = load_workload("qwen3-30b-a3b", ep=4)
    assert (workload.layout.world, workload.layout.ep, workload.global_batch) == (4, 4, 4)
    assert (workload.tokens_per_rank, workload.row_bytes, workload.precision) == (4096, 4096, "bf16")


def test_row_bytes_by_precision():
    sizes = {p: load_workload("deepseek-v3", ep=8, precision=p) for p in ("bf16", "fp16", "fp32", "fp8")}
    assert {p: w.row_bytes for p, w in sizes.items()} == {
        "bf16": 14336,
        "fp16": 14336,
        "fp32": 28672,
        "fp8": 7392,  # 7168 + 56 float32 scales, as DeepEP counts it
    }
    assert sizes["fp8"].combine_row_bytes == 14336
    assert load_workload("nemotron-3-super-120b-a12b", ep=8).row_bytes == 2048


def test_yaml_with_overrides(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen3_30B_A3B\nlayout: {world: 32, tp: 2, ep: 16, etp: 1}\nseq_length: 8192\nglobal_batch: 64\n"
        "precision: fp8\nrouting: zipf:1.0\n"
    )
    workload = load_workload(str(path))
    assert (workload.layout.dp, workload.tokens_per_rank, workload.routing) == (16, 4096, "zipf:1.0")
    changed = load_workload(str(path), ep=8, overrides={"ep": 4, "seq_length": 4096}, tp=None)
    assert (changed.layout.ep, changed.layout.tp, changed.seq_length) == (8, 2, 4096)


def test_yaml_with_an_inline_model_a_config_and_a_trace_beside_it(tmp_path):
    shape = {"hidden": 64, "num_layers": 1, "num_moe_layers": 1, "num_experts": 8, "topk": 2, "moe_ffn_hidden": 32}
    (tmp_path / "trace.json").write_text("[[0, 1]]")
    path = tmp_path / "tiny.yml"
    path.write_text(json.dumps({"model": shape, "layout": {"ep": 2}, "routing": "trace:trace.json"}))
    workload = load_workload(str(path))
    assert workload.model.name == "tiny"
    assert workload.contract_fields()["routing"].startswith("trace:sha256-")
    config = {"hidden_size": 64, "num_hidden_layers": 1, "num_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config, "moe_intermediate_size": 32}))
    path.write_text("model: ./config.json\n")
    assert load_workload(str(path), ep=4).model.hidden == 64
    assert load_workload(str(tmp_path / "config.json"), ep=4).model.moe_ffn_hidden == 32


def test_contract_fields_are_plain_and_see_every_difference():
    base = load_workload("deepseek-v3", ep=8).contract_fields()
    assert json.loads(json.dumps(base)) == base
    for change in ({"ep": 16}, {"tp": 2}, {"precision": "fp8"}, {"routing": "zipf:1"}, {"seq_length": 2048}):
        assert load_workload("deepseek-v3", **{"ep": 8, **change}).contract_fields() != base
    assert load_workload("deepseek-v3", ep=8, routing="Force-Balanced").contract_fields() == base


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "no expert-parallel size is given"),
        ({"ep": 7}, "EP=7 does not divide the 128 experts"),
        ({"ep": 8, "world": 12}, "does not divide the 12 ranks"),
        ({"ep": 8, "routing": "natural"}, "is not understood"),
        ({"ep": 8, "precision": "int4"}, "precision: Input should be 'bf16'"),
        ({"ep": 8, "global_batch": 9}, "global batch 9 is not a multiple"),
        ({"ep": 8, "seq_length": 0}, "seq_length: Input should be greater than 0"),
        ({"ep": 8, "micro_batch": "x"}, "micro_batch: Input should be a valid integer"),
        ({"ep": "8"}, "ep='8' must be an integer"),
        ({"ep": 8, "batch": 3}, "field 'batch' is not known"),
    ],
)
def test_impossible_requests(kwargs, message):
    with pytest.raises(WorkloadError, match=message) as caught:
        load_workload("qwen3-30b-a3b", **kwargs)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: [", "is not valid YAML"),
        ("- 1", "is not a workload"),
        ("seq_length: 1", "is not a workload"),
        ("model: qwen3-30b-a3b\nbatch: 1", "field 'batch' is not known"),
        ("model: qwen3-30b-a3b\nlayout: {ep: 2, dp: 2}", "layout must be a mapping"),
        ("model: 3\nlayout: {ep: 2}", "model must be a name"),
        ("model: {hidden: 8}\nlayout: {ep: 2}", "num_experts: Field required"),
        ("model: {hidden: 8, depth: 3}\nlayout: {ep: 2}", "depth: Extra inputs are not permitted"),
        ("model: {1: 8}\nlayout: {ep: 2}", "keywords must be strings"),
        ("model: qwen3-30b-a3b\nlayout: {ep: two}", "ep='two' must be an integer"),
    ],
)
def test_bad_yaml(tmp_path, content, message):
    path = tmp_path / "w.yaml"
    path.write_text(content)
    with pytest.raises(WorkloadError, match=message):
        load_workload(str(path))


def test_paths_that_are_not_there(tmp_path):
    with pytest.raises(WorkloadError, match=r"none.yaml does not exist"):
        load_workload(str(tmp_path / "none.yaml"), ep=2)
    with pytest.raises(WorkloadError, match=r"none.json does not exist"):
        load_workload(str(tmp_path / "none.json"), ep=2)
    with pytest.raises(WorkloadError, match="is a directory"):
        load_workload(str(tmp_path), ep=2)


def test_workload_layer_imports_neither_torch_nor_numpy():
    code = (
        "import sys, moe_dispatch.workload.workload as w; w.load_workload('deepseek-v3', ep=8); "
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
