"""Reading configurations: every launcher's order of precedence, and where a value comes from."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from moe_dispatch.core.errors import MoeDispatchError, UsageError
from moe_dispatch.megatron.inputs.read import Declared, read_config
from moe_dispatch.megatron.inputs.shell import read_script
from moe_dispatch.megatron.lint import LintResult, lint
from moe_dispatch.megatron.settings import MegatronConfig, UnknownSetting
from moe_dispatch.site.hardware import declared_site

TYPE, BACKEND = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"
RECIPE = "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"
HARNESS = ("-m", "qwen", "-mr", "qwen3_30b_a3b", "--task", "pretrain", "-g", "h100", "-c", "bf16", "-ng", "16")


def read_text(tmp_path: Path, text: str, name: str = "run.sh", **declared: object) -> MegatronConfig:
    path = tmp_path / name
    path.write_text(text)
    return read_config([str(path)], Declared(**declared))  # type: ignore[arg-type]


def test_arguments_become_fields_with_their_origin() -> None:
    found = read_config(
        [
            *("--num-experts", "64", "--fp8-format", "hybrid", "--disable-bias-linear", "--moe-grouped-gemm"),
            *("--moe-router-load-balancing-type", "seq_aux_loss", "--recompute-modules", "moe_act", "layernorm"),
            *("--moe-layer-freq", "([0]*1+[1]*3)", "--lr", "1e-4", "--expert-model-parallel-size=8"),
            *("--no-check-for-nan-in-loss-and-grad", "--moe-expert-capacity-factor", "-1"),
        ]
    )
    assert found.framework == "megatron-lm"
    assert found.get("num_moe_experts") == 64
    assert found.get("fp8") == "hybrid"
    assert found.get("add_bias_linear") is False
    assert found.get("moe_grouped_gemm") is True
    assert found.get("recompute_modules") == ("moe_act", "layernorm")
    assert found.get("moe_layer_freq") == (0, 1, 1, 1)
    assert found.get("expert_model_parallel_size") == 8
    assert found.get("check_for_nan_in_loss_and_grad") is False
    assert found.get("moe_expert_capacity_factor") == -1
    assert str(found.value("num_moe_experts").origin) == "flag command line --num-experts"


def test_the_last_flag_wins_and_absent_fields_have_the_default_of_the_release() -> None:
    words = ["--moe-deepep-num-sms", "24", "--moe-token-dispatcher-type", "alltoall"]
    words += ["--moe-token-dispatcher-type", "flex"]
    assert read_config(words).get(TYPE) == "flex"
    assert read_config(words[2:], Declared(core_version="0.18.2")).get("moe_deepep_num_sms") == 20
    assert read_config(words[2:], Declared(core_version="0.19.2")).get("moe_deepep_num_sms") is None


def test_layers_of_a_virtual_stage_become_stages() -> None:
    words = [
        "--num-layers",
        "48",
        "--pipeline-model-parallel-size",
        "4",
        "--num-layers-per-virtual-pipeline-stage",
        "3",
    ]
    assert read_config(words).get("virtual_pipeline_model_parallel_size") == 4


SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
EP=$((8 * 2))   # experts of a rank
KIND=${KIND:-hybridep}
ARGS=(
  --num-experts 128
  --expert-model-parallel-size $EP
)
if [[ "$KIND" == "alltoall" ]]; then
  ARGS+=(--moe-token-dispatcher-type alltoall)
elif [ -n "$KIND" ]; then
  ARGS+=(--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend "$KIND")
fi
EXTRA="--moe-router-topk 8 --bf16"
NVTE_X=1 torchrun --nproc-per-node 8 pretrain_gpt.py \
  "${ARGS[@]}" $EXTRA "$@"
"""


def test_a_script_is_followed_as_far_as_it_is_literal(tmp_path: Path) -> None:
    found = read_text(tmp_path, SCRIPT)
    assert (found.get(TYPE), found.get(BACKEND)) == ("flex", "hybridep")
    assert found.get("expert_model_parallel_size") == 16
    assert found.get("moe_router_topk") == 8
    assert found.complete
    assert found.world_size == 16
    assert dict(found.env) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_X": "1"}
    assert str(found.env_origins["CUDA_DEVICE_MAX_CONNECTIONS"]) == "script run.sh:4"


def test_a_variable_of_the_shell_decides_a_branch(tmp_path: Path) -> None:
    assert read_text(tmp_path, SCRIPT, environment={"KIND": "alltoall"}).get(TYPE) == "alltoall"


def test_an_unset_variable_opens_its_field_and_no_other(tmp_path: Path) -> None:
    found = read_text(tmp_path, "python pretrain_gpt.py --moe-router-topk $K --moe-token-dispatcher-type alltoall\n")
    assert found.get(TYPE) == "alltoall"
    assert found.get("moe_router_dtype") is None
    with pytest.raises(UnknownSetting, match="moe_router_topk"):
        found.get("moe_router_topk")


def test_unset_arguments_open_every_absent_field(tmp_path: Path) -> None:
    found = read_text(tmp_path, "python pretrain_gpt.py --moe-router-topk 8 $MORE_ARGS\n")
    assert not found.complete
    assert "MORE_ARGS" in found.notes[-1]
    assert found.get("moe_router_topk") == 8
    with pytest.raises(UnknownSetting):
        found.get(TYPE)


def test_what_a_condition_decides_is_not_guessed(tmp_path: Path) -> None:
    text = "D=alltoall\nif test -f x; then D=flex; fi\npython p.py --moe-token-dispatcher-type $D --bf16\n"
    found = read_text(tmp_path, text)
    assert found.get("bf16") is True
    with pytest.raises(UnknownSetting):
        found.get(TYPE)


def test_quotes_comments_and_heredocs() -> None:
    text = "A='x $B # y'\ncat <<EOF\nnothing here.py\nEOF\nrun \"$A\" plain'quoted' # comment\n"
    (cat, run) = read_script(text).commands
    assert cat.words == ("cat",)
    assert run.words == ("run", "x $B # y", "plainquoted")


def test_yaml_of_bridge_with_moved_sections(tmp_path: Path) -> None:
    text = """
model: {_target_: x.Y, moe_token_dispatcher_type: flex, num_moe_experts: 8, activation: !!python/name:torch.relu ''}
train: {micro_batch_size: 2, global_batch_size: 64}
comm_overlap: {overlap_moe_expert_parallel_comm: true}
env_vars: {NCCL_NVLS_ENABLE: 0}
mixed_precision: bf16_with_mxfp8_mixed
"""
    found = read_text(tmp_path, text, "c.yaml")
    assert found.framework == "megatron-bridge"
    assert found.get(TYPE) == "flex"
    assert found.get("micro_batch_size") == 2
    assert found.get("comm_overlap.overlap_moe_expert_parallel_comm") is True
    assert (found.get("bf16"), found.get("fp8")) == (True, "e4m3")
    assert found.env["NCCL_NVLS_ENABLE"] == "0"


def test_a_recipe_with_overrides_and_the_shell_over_its_variables() -> None:
    words = [RECIPE, "model.moe_flex_dispatcher_backend=deepep", "env_vars.NVLINK_DOMAIN_SIZE=4"]
    found = read_config(words, Declared(environment={"USE_MNNVL": "1"}))
    assert found.get(BACKEND) == "deepep"
    assert found.value(BACKEND).origin.kind == "override"
    assert found.value(TYPE).origin.kind == "recipe"
    assert (found.world_size, found.gpu) == (16, "h100")
    assert found.env["NVLINK_DOMAIN_SIZE"] == "4"
    assert found.env["USE_MNNVL"] == "1"
    assert found.shadowed_env == {"USE_MNNVL": "0"}


def test_what_the_record_of_a_recipe_does_not_hold_is_open() -> None:
    with pytest.raises(UnknownSetting):
        read_config([RECIPE]).get("moe_expert_capacity_factor")


@pytest.mark.parametrize(
    ("runner", "sms"),
    [(("run_script.py",), 8), (("run_recipe.py",), 4), (("run_script.py", "--use_recipes"), 4)],
)
def test_arguments_and_overrides_in_the_order_of_the_runner(runner: tuple[str, ...], sms: int) -> None:
    words = [*runner, *HARNESS, "-ep", "8", "model.expert_model_parallel_size=4"]
    found = read_config(words)
    assert found.recipe == RECIPE
    assert found.get("expert_model_parallel_size") == sms


def test_the_backend_flag_sets_the_type_in_one_runner_only() -> None:
    flag = ("--moe_flex_dispatcher_backend", "None")
    flat = read_config(["run_script.py", *HARNESS, *flag])
    recipe = read_config(["run_recipe.py", *HARNESS, *flag])
    assert (flat.get(TYPE), flat.get(BACKEND)) == ("alltoall", None)
    assert (recipe.get(TYPE), recipe.get(BACKEND)) == ("flex", None)


def test_run_recipe_derives_the_domain_from_the_final_group() -> None:
    found = read_config(["run_recipe.py", *HARNESS, "-ep", "4"])
    assert found.env["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "4"


def test_token_drop_changes_the_routing_too() -> None:
    found = read_config(["run_script.py", *HARNESS, "--use_tokendrop", "true"])
    assert found.get("moe_router_force_load_balancing") is False
    assert found.get("moe_pad_expert_input_to_capacity") is True


def test_an_unknown_recipe_of_the_harness_leaves_fields_open() -> None:
    found = read_config(["run_script.py", "-m", "x", "-mr", "no_such", "-g", "h100", "-ng", "16", "-tp", "2"])
    assert not found.complete
    assert found.get("tensor_model_parallel_size") == 2


def test_declared_settings_are_the_strongest() -> None:
    found = read_config(["--moe-router-topk", "4"], Declared(settings=("model.moe_router_topk=8",)))
    assert found.get("moe_router_topk") == 8
    assert found.value("moe_router_topk").origin.kind == "declared"


@pytest.mark.parametrize(
    ("words", "declared", "said"),
    [
        ([], Declared(), "nothing to lint"),
        (["no_such_recipe_config"], Declared(), "no recipe"),
        (["--bf16"], Declared(settings=("moe_router_topk",)), "not FIELD=VALUE"),
        (["--bf16"], Declared(core_version="latest"), "not a release number"),
    ],
)
def test_what_cannot_be_meant_is_one_message(words: list[str], declared: Declared, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_config(words, declared)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "a: [1", "no valid YAML"),
        ("a.yaml", "- 1\n", "no mapping"),
        ("a.sh", "echo hello\n", "no training command"),
    ],
)
def test_a_file_that_is_none_of_them(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_text(tmp_path, text, name)


WORDS = st.sampled_from(
    [
        *("--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "hybridep", "--seq-length", "-1"),
        *("--expert-model-parallel-size", "0", "x", "--", "model.a=", "model.moe_router_topk=[1,2", "~model.x", "$X"),
        *(
            "run_script.py",
            "run_recipe.py",
            "-ep",
            "-ng",
            "--use_recipes",
            "--num-experts",
            "1e999",
            "nan",
            "'",
            "=",
            "--=",
        ),
        *("--moe-layer-freq", "([0]*9999999999)", "--bf16", "--recompute-modules", "moe", "--cuda-graph-impl", "local"),
        *(
            "--pipeline-model-parallel-size",
            "true",
            "--moe-deepep-num-sms",
            "--micro-batch-size",
            "99999999999999999999",
        ),
    ]
)
SITE = declared_site("gb200", 4)


def judge_or_refuse(words: list[str]) -> None:
    """Anything else than a result or an expected refusal fails the test."""
    with contextlib.suppress(MoeDispatchError):
        assert isinstance(lint(read_config(words), SITE), LintResult)


@given(st.lists(st.one_of(WORDS, st.text(max_size=12)), max_size=14))
@settings(max_examples=300, deadline=None)
@example(["--micro-batch-size", "1e999"])
@example(["--moe-flex-dispatcher-num-sms", "nan", "--expert-model-parallel-size", "-inf"])
def test_any_words_are_judged_or_refused(words: list[str]) -> None:
    judge_or_refuse(words)


@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(SCRIPT.splitlines()), max_size=20).map("\n".join)))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_judged_or_refused(tmp_path: Path, text: str) -> None:
    for name in ("fuzz.sh", "fuzz.yaml"):
        path = tmp_path / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        judge_or_refuse([str(path)])
