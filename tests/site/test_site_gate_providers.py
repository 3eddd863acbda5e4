"""Who provides a module, what hides it, which interfaces it offers, and which consumer's imports are tried."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from gate_binaries import CUBIN, compiler, container, machine, with_device_code
from gate_modules import NAME, Stage, backend, calling, compile_shared, needs_gcc

from moe_dispatch.core.backend import Consumer, SymbolNeed
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import get_backend
from moe_dispatch.site import gate_consumer
from moe_dispatch.site.gate import gate, gate_consumers
from moe_dispatch.site.gate_result import GateResult


def record(stage: Stage, name: str, version: str, *files: str) -> None:
    """A distribution that lists what it installed."""
    stage.distribution(name, version, NAME)
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    stage.write({f"{info}/RECORD": "".join(f"{file},,\n" for file in files)})


def ask(stage: Stage, *symbols: str) -> GateResult:
    return gate(backend(*symbols), python=stage.python)


def test_a_folder_without_init_is_not_the_package(stage: Stage) -> None:
    stage.write({f"{NAME}/README": "a checkout"})
    result = ask(stage, "Buffer")
    assert (result.reason_class, result.status) == ("shadowed-module", "broken")
    assert f"{stage.path / NAME} is a folder without __init__.py" in result.reason


def test_a_namespace_that_a_distribution_installed_is_one(stage: Stage) -> None:
    stage.write({f"{NAME}/ep.py": "Group = 1\n"})
    record(stage, "fake-ep", "1.0", f"{NAME}/ep.py")
    result = gate(backend("Group", module=f"{NAME}.ep"), python=stage.python)
    assert (result.available, result.notes, result.provider) == (True, (), "fake-ep")


def test_two_distributions_of_one_module(stage: Stage) -> None:
    stage.package("class Buffer: pass\n")
    for name in ("fake-ep", "other-ep"):
        record(stage, name, "1.0", f"{NAME}/__init__.py")
    fine = ask(stage, "Buffer")
    assert fine.available
    assert "fake-ep 1.0 and other-ep 1.0 both installed fake_ep" in fine.notes[0]
    broken = ask(stage, "HybridEPBuffer")
    assert broken.reason_class == "shadowed-module"
    assert "has no HybridEPBuffer" in broken.reason


def test_a_checkout_hides_the_installed_package(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.package("class Buffer: pass\n")
    record(stage, "fake-ep", "1.0", f"{NAME}/__init__.py")
    checkout = tmp_path / "checkout"
    (checkout / NAME).mkdir(parents=True)
    (checkout / NAME / "__init__.py").write_text("")
    monkeypatch.chdir(checkout)
    result = ask(stage, "Buffer")
    assert result.reason_class == "shadowed-module"
    assert f"{checkout / NAME / '__init__.py'} hides the fake_ep that fake-ep 1.0 installed" in result.reason


def test_an_editable_install_hides_nothing(stage: Stage, tmp_path: Path) -> None:
    source = tmp_path / "path" / NAME
    stage.package("class Buffer: pass\n")
    record(stage, "fake-ep", "1.0", "fake_ep.pth")
    url = json.dumps({"url": f"file://{source.parent}", "dir_info": {"editable": True}})
    stage.write({"fake_ep-1.0.dist-info/direct_url.json": url})
    result = ask(stage, "Buffer")
    assert (result.available, result.notes) == (True, ())


@pytest.mark.parametrize(
    ("version", "direct_url", "commit"),
    [
        ("1.2.1+94a9f8f", None, "94a9f8f"),
        ("2.13.0+cpu", None, None),
        ("1.0", {"url": "git+https://x/y", "vcs_info": {"vcs": "git", "commit_id": "dd758caf00"}}, "dd758caf00"),
    ],
)
def test_the_commit_of_a_build(stage: Stage, version: str, direct_url: object, commit: str | None) -> None:
    stage.package("")
    stage.distribution("fake-ep", version, NAME)
    if direct_url:
        stage.write({f"fake_ep-{version}.dist-info/direct_url.json": json.dumps(direct_url)})
    assert ask(stage).commit == commit


@needs_gcc
def test_both_torch_versions_are_named(stage: Stage) -> None:
    stage.extension(calling("_Z14THPStream_WrapRKN3c106StreamE"))
    stage.distribution("torch", "2.11.0", "torch")
    stage.distribution("fake-ep", "1.0", NAME)
    metadata = stage.path / "fake_ep-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: torch==2.14.1\n")
    result = ask(stage, "Buffer")
    assert (result.reason_class, result.built_for_torch) == ("torch-abi-mismatch", "2.14.1")
    assert "was built for torch 2.14.1 (here 2.11.0)" in result.reason
    assert result.fix == "rebuild fake_ep against torch 2.11.0"


VARIANTS = [
    ("hybridep", "Buffer = 1", "no-hybridep-buffer", "deep_ep.Buffer serves Megatron-Core's deepep"),
    ("deepep", "ElasticBuffer = 1", "v2-only", "deep_ep.ElasticBuffer serves DeepEP V2"),
    ("deepep", "Buffer = ElasticBuffer = EventOverlap = 1", "moved-symbol", "no EventOverlap"),
]


@pytest.mark.parametrize(("name", "text", "variant", "part"), VARIANTS)
def test_deep_ep_without_what_is_asked_for(stage: Stage, name: str, text: str, variant: str, part: str) -> None:
    stage.write({"deep_ep/__init__.py": text + "\n", "deep_ep/utils.py": "EventHandle = 1\n"})
    result = gate(get_backend(name), "megatron-core", python=stage.python)
    assert (result.status, result.variant) == ("missing-feature", variant)
    assert part in result.reason
    assert result.fix


def test_deep_ep_of_the_first_generation_only(stage: Stage) -> None:
    stage.write({"deep_ep/__init__.py": "class Buffer: pass\n"})
    result = gate(backend("ElasticBuffer", module="deep_ep"), python=stage.python)
    assert (result.status, result.variant, result.apis) == ("missing-feature", "v1-only", ("deep_ep.Buffer",))


@pytest.mark.parametrize(
    ("module", "top", "variant"), [("uccl.ep", "uccl", "no-uccl-ep"), ("nccl.ep", "nccl", "no-nccl-ep")]
)
def test_a_package_without_its_expert_parallel_module(stage: Stage, module: str, top: str, variant: str) -> None:
    stage.write({f"{top}/__init__.py": ""})
    result = gate(backend(module=module), python=stage.python)
    assert (result.status, result.variant) == ("missing-feature", variant)


def test_transformer_engine_without_nccl_ep(stage: Stage) -> None:
    stage.write({"transformer_engine/__init__.py": "", "transformer_engine/pytorch/__init__.py": ""})
    result = gate(get_backend("ncclep"), "megatron-core", python=stage.python)
    assert (result.status, result.variant) == ("missing-feature", "no-nccl-ep")
    assert "NVTE_BUILD_WITH_NCCL_EP=1" in result.fix


def test_the_version_of_the_consumer_decides(stage: Stage) -> None:
    stage.write({"deep_ep/__init__.py": "Buffer = 1\n"})
    deepep = get_backend("deepep")
    assert gate(deepep, "megatron-core==0.12.1", python=stage.python).available
    assert not gate(deepep, "megatron-core==0.13.0", python=stage.python).available
    assert gate(deepep, "megatron-core", python=stage.python).consumer == "megatron-core >=0.13"
    old = gate(get_backend("hybridep"), "megatron-core==0.15.0", python=stage.python)
    assert (old.status, old.variant) == ("missing-feature", "consumer-too-old")
    assert old.reason == "megatron-core 0.15.0 has no hybridep; it takes >=0.16"
    with pytest.raises(UsageError, match="'megatron'"):
        gate(deepep, "megatron==0.19")


def test_the_installed_version_counts_for_this_interpreter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.12.0")
    deepep = get_backend("deepep")
    assert [need.module for need in gate_consumer.want(deepep, "megatron-core").needs] == ["deep_ep"]
    elsewhere = gate_consumer.want(deepep, "megatron-core", python=sys.executable + "x")
    assert [need.module for need in elsewhere.needs] == ["deep_ep", "deep_ep.utils"]


def test_each_consumer_is_asked_for_itself(stage: Stage) -> None:
    stage.package("Old = 1\n")
    consumers = [Consumer(name=each, needs=(SymbolNeed(module=NAME, symbols=(each,)),)) for each in ("Old", "New")]
    results = gate_consumers(backend().model_copy(update={"consumers": tuple(consumers)}), python=stage.python)
    assert [(result.consumer, result.available) for result in results] == [("Old", True), ("New", False)]


class TestImportProbes:
    """The ways in which one import fails: verl-project/verl#4353, DeepEP#309, sglang#40671, Megatron-Bridge#1101."""

    ALLTOALL = ("torch/__init__.py", "torch/distributed.py")

    def probe(self, stage: Stage, wanted: str, capability: str | None = None) -> GateResult:
        """Gate one backend, and see that the ones that need torch only stay available."""
        stage.write({self.ALLTOALL[0]: "", self.ALLTOALL[1]: "all_to_all_single = init_process_group = print\n"})
        for name in ("alltoall", "allgather"):
            ours = get_backend(name).model_copy(update={"target": None})
            assert gate(ours, python=stage.python).available
        site = machine(capability) if capability else None
        return gate(get_backend(wanted), "megatron-core", python=stage.python, site=site)

    def test_p1_absent(self, stage: Stage) -> None:
        assert self.probe(stage, "deepep").status == "not-installed"

    @needs_gcc
    def test_p2_another_torch(self, stage: Stage) -> None:
        stage.write({"deep_ep/__init__.py": "import deep_ep_cpp\n"})
        compile_shared(stage.path / "deep_ep_cpp.so", calling("_Z14THPStream_WrapRKN3c106StreamE"))
        stage.distribution("torch", "2.11.0", "torch")
        result = self.probe(stage, "deepep")
        assert (result.status, result.reason_class) == ("broken", "torch-abi-mismatch")
        assert result.fix == "rebuild deep_ep against torch 2.11.0"

    @needs_gcc
    def test_p3_two_nccl_copies(self, stage: Stage) -> None:
        loads = "import ctypes\n"
        for folder in ("venv", "opt"):
            compile_shared(stage.path / folder / "libnccl.so.2", f"int {folder} = 1;\n")
            loads += f"ctypes.CDLL('{stage.path}/{folder}/libnccl.so.2')\n"
        stage.write({"deep_ep/__init__.py": loads + "def check_nccl_so():\n    assert False\ncheck_nccl_so()\n"})
        result = self.probe(stage, "deepep")
        assert (result.status, result.reason_class) == ("broken", "two-nccl-copies")
        assert "leave one libnccl visible" in result.fix

    def test_p4_no_hybridep_buffer(self, stage: Stage) -> None:
        stage.write({"deep_ep/__init__.py": "Buffer = EventOverlap = 1\n"})
        stage.write({"deep_ep/utils.py": "EventHandle = EventOverlap = 1\n"})
        result = self.probe(stage, "hybridep")
        assert (result.status, result.variant) == ("missing-feature", "no-hybridep-buffer")
        assert "hybrid-ep branch" in result.fix
        assert self.probe(stage, "deepep").available

    @needs_gcc
    @pytest.mark.parametrize(
        ("built", "capability", "expected"), [((90,), "10.0", "wrong-sm-arch"), ((90, 100), "9.0", "")]
    )
    def test_p5_p6_architectures(
        self,
        stage: Stage,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        built: tuple[int, ...],
        capability: str,
        expected: str,
    ) -> None:
        works = 'while [ "$1" != -o ]; do shift; done; echo cubin > "$2"'
        monkeypatch.setenv("CUDA_HOME", compiler(tmp_path / "cuda", works))
        stage.write({"deep_ep/__init__.py": "Buffer = HybridEPBuffer = 1\n"})
        with_device_code(stage.path / "hybrid_ep_cpp.so", [container(*((CUBIN, arch, 0) for arch in built))])
        result = self.probe(stage, "hybridep", capability)
        assert result.reason_class == expected, result
        assert result.status == ("broken" if expected else "ok")
        if expected:
            assert result.fix == "rebuild with TORCH_CUDA_ARCH_LIST including 10.0"
