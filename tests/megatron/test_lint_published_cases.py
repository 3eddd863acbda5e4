"""Public reports as inputs: each with its findings, and with contrasts that change them.

Threads: NVIDIA-NeMo/Megatron-Bridge#5992 (replaced backend), #1948 and #6062 (stale domain), #5270 (uneven tokens),
#3294 (alignment), #2655 (export), #2809 (overlap); NVIDIA/Megatron-LM#3999 (queue depth), #6311 (connections), #1598
(capture).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.flow.lint import LintRequest, run_lint
from moe_dispatch.megatron.lint import LintResult


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def judge(path: Path, text: str, **options: object) -> LintResult:
    path.write_text(text)
    return run_lint(LintRequest(words=(str(path), *options.pop("overrides", ())), **options))  # type: ignore[arg-type, misc]


def errors(result: LintResult) -> set[str]:
    return {each.id for each in result.findings if each.severity is Severity.ERROR}


def finding(result: LintResult, name: str) -> Finding:
    return next(each for each in result.findings if each.id == name)


FLEX_EP32 = "moe_token_dispatcher_type: flex\nmoe_flex_dispatcher_backend: {}\nexpert_model_parallel_size: 32\n"


def bridge(text: str) -> str:
    """The fields as the model section of a ConfigContainer."""
    return "model:\n" + "".join(f"  {line}\n" for line in text.splitlines())


def test_backend_replaced_on_gb200(config: Path) -> None:
    result = judge(config, bridge(FLEX_EP32.format("deepep")), site="gb200", nodes=8, bridge_version="0.6.0")
    assert result.effective is not None
    assert (result.effective.requested, result.effective.effective) == ("deepep", "alltoall")
    assert {"requested-not-effective", "deepep-v1-unsupported-on-gb200"} <= errors(result)


@pytest.mark.parametrize(("backend", "site", "nodes"), [("deepep", "b200", 4), ("hybridep", "gb200", 8)])
def test_backend_kept_where_bridge_accepts_it(config: Path, backend: str, site: str, nodes: int) -> None:
    result = judge(config, bridge(FLEX_EP32.format(backend)), site=site, nodes=nodes, bridge_version="0.6.0")
    assert result.effective is not None
    assert result.effective.effective == backend
    assert errors(result) == set()


DOMAIN = """
moe_token_dispatcher_type: flex
moe_flex_dispatcher_backend: hybridep
tensor_model_parallel_size: 1
pipeline_model_parallel_size: 4
expert_tensor_parallel_size: 1
expert_model_parallel_size: 16
"""


def test_stale_domain_after_an_override(config: Path) -> None:
    result = judge(
        config,
        DOMAIN,
        overrides=("expert_model_parallel_size=64",),
        site="gb200",
        nodes=64,
        variables=("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=16", "USE_MNNVL=1"),
    )
    assert errors(result) == {"hybridep-domain-ranks-mismatch"}
    advice = " ".join(finding(result, "hybridep-domain-ranks-mismatch").advice)
    assert "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=64" in advice
    assert "=4" not in advice


@pytest.mark.parametrize(
    ("site", "nodes", "variables"),
    [
        ("h100", 8, ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8",)),
        ("gb200", 64, ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=16", "USE_MNNVL=1")),
    ],
)
def test_domain_that_fits(config: Path, site: str, nodes: int, variables: tuple[str, ...]) -> None:
    assert errors(judge(config, DOMAIN, site=site, nodes=nodes, variables=variables)) == set()


PACKED = """
moe_token_dispatcher_type: flex
moe_flex_dispatcher_backend: hybridep
moe_hybridep_pad_uneven_dispatch_inputs: false
expert_model_parallel_size: 4
sequence_packing: true
cuda_graph_impl: none
"""


def test_uneven_tokens_under_hybridep(config: Path) -> None:
    result = judge(config, PACKED)
    assert errors(result) == {"hybridep-uneven-local-tokens"}
    assert "moe_hybridep_pad_uneven_dispatch_inputs=true" in finding(result, "hybridep-uneven-local-tokens").advice[0]


@pytest.mark.parametrize("change", [("inputs: false", "inputs: true"), ("type: flex", "type: alltoall")])
def test_uneven_tokens_padded_or_under_alltoall(config: Path, change: tuple[str, str]) -> None:
    text = PACKED.replace(*change)
    if "alltoall" in change[1]:
        text = text.replace("moe_flex_dispatcher_backend: hybridep\n", "")
    assert errors(judge(config, text)) == set()


def test_padding_inside_a_graph_is_a_warning(config: Path) -> None:
    text = PACKED.replace("inputs: false", "inputs: true").replace("impl: none", "impl: transformer_engine")
    result = judge(config, text + "cuda_graph_modules: [moe_router, moe_preprocess]\n", core_version="0.19.2")
    assert errors(result) == set()
    assert finding(result, "hybridep-padding-in-graph").severity is Severity.WARNING


ALIGNED = """
moe_token_dispatcher_type: flex
moe_flex_dispatcher_backend: hybridep
expert_model_parallel_size: 8
tensor_model_parallel_size: {tp}
context_parallel_size: 1
seq_length: {seq}
micro_batch_size: 3
"""


def test_token_count_not_aligned(config: Path) -> None:
    result = judge(config, ALIGNED.format(tp=1, seq=2043))
    assert errors(result) == {"hybridep-token-alignment"}
    said = finding(result, "hybridep-token-alignment")
    assert "6129" in said.message
    assert "6144" in said.advice[0]


@pytest.mark.parametrize("tp", [1, 2])
def test_token_count_aligned(config: Path, tp: int) -> None:
    text = ALIGNED.format(tp=tp, seq=2048) + "sequence_parallel: true\nexpert_tensor_parallel_size: 1\n"
    assert errors(judge(config, text)) == set()


QUEUE = """
moe_token_dispatcher_type: flex
moe_flex_dispatcher_backend: hybridep
expert_model_parallel_size: {ep}
tensor_model_parallel_size: 1
context_parallel_size: 1
seq_length: 8192
micro_batch_size: {mbs}
"""


def test_queue_too_deep_over_infiniband(config: Path) -> None:
    result = judge(config, QUEUE.format(ep=16, mbs=4), site="h100-infiniband", nodes=2)
    assert errors(result) == {"hybridep-ib-queue-depth"}
    said = finding(result, "hybridep-ib-queue-depth")
    assert "98305" in said.message
    assert "16384 tokens" in " ".join(said.advice)


@pytest.mark.parametrize(("site", "nodes", "ep", "mbs"), [("gb300", 2, 8, 4), ("h100-infiniband", 2, 16, 2)])
def test_queue_that_holds(config: Path, site: str, nodes: int, ep: int, mbs: int) -> None:
    assert errors(judge(config, QUEUE.format(ep=ep, mbs=mbs), site=site, nodes=nodes)) == set()


EXPORT = "moe_token_dispatcher_type: flex\nmoe_flex_dispatcher_backend: {}\nexpert_model_parallel_size: {}\n"


def test_flex_in_a_single_process(config: Path) -> None:
    result = judge(config, EXPORT.format("deepep", 1), settings=("expert_tensor_parallel_size=1",), world=1)
    assert errors(result) == {"flex-requires-tp-times-ep-gt-1"}
    said = " ".join(finding(result, "flex-requires-tp-times-ep-gt-1").advice)
    assert "alltoall" in said
    assert "reinstall" not in said


def test_flex_with_its_group(config: Path) -> None:
    assert errors(judge(config, EXPORT.format("deepep", 8), world=8)) == set()


def test_hybridep_in_a_single_process_is_a_warning(config: Path) -> None:
    result = judge(config, EXPORT.format("hybridep", 1), core_version="0.20.0", world=1)
    assert errors(result) == set()
    assert finding(result, "flex-requires-tp-times-ep-gt-1").severity is Severity.WARNING


OVERLAP = """
moe_token_dispatcher_type: alltoall
expert_model_parallel_size: 16
pipeline_model_parallel_size: 4
virtual_pipeline_model_parallel_size: null
tensor_model_parallel_size: {tp}
bf16: true
overlap_moe_expert_parallel_comm: {on}
moe_shared_expert_overlap: {on}
recompute_granularity: selective
recompute_modules: [moe, layernorm]
"""


def test_overlap_with_what_excludes_it(config: Path) -> None:
    variables = ("CUDA_DEVICE_MAX_CONNECTIONS=1",)
    result = judge(config, OVERLAP.format(tp=1, on="true"), site="h100", variables=variables, core_version="0.19.2")
    assert errors(result) == {
        "overlap-vs-shared-expert-overlap",
        "overlap-needs-vpp-when-pp",
        "overlap-vs-moe-in-recompute-modules",
    }
    said = finding(result, "max-connections-1-hides-overlap")
    assert said.severity is Severity.WARNING
    assert "CUDA_DEVICE_MAX_CONNECTIONS=32 in the launcher" in said.advice[0]
    assert "no effect" in said.advice[1]


def test_one_connection_may_be_needed_for_tensor_parallelism(config: Path) -> None:
    text = OVERLAP.format(tp=4, on="true") + "sequence_parallel: true\n"
    said = finding(
        judge(config, text, site="h100", variables=("CUDA_DEVICE_MAX_CONNECTIONS=1",)),
        "max-connections-1-hides-overlap",
    )
    assert said.severity is Severity.WARNING
    assert "TP" in said.why
    assert "may require 1" in said.why


def test_whole_layer_captured_without_capacity(config: Path) -> None:
    text = OVERLAP.format(tp=1, on="false") + "num_moe_experts: 64\ncuda_graph_impl: transformer_engine\n"
    result = judge(config, text + "cuda_graph_modules: []\n", core_version="0.19.2")
    assert errors(result) == {"graph-capture-needs-static-moe"}
