import pytest

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload import catalogue
from moe_dispatch.workload.catalogue import find_model, list_models
from moe_dispatch.workload.model import ModelShape, RouterShape

# Total and activated parameters in billions, from the models' own names; embeddings included.
PUBLISHED_BILLIONS = {
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235,
    "deepseek-v3": 671,
    "kimi-k2": 1026,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    "glm-4-5-355b": 355,
    "glm-4-5-air-106b": 106,
    "mixtral-8x7b": 46.7,
    "moonlight-16b-a3b": 16,
    "nemotron-3-super-120b-a12b": 120,
    "nemotron-3-nano-30b-a3b": 31.6,
    "qwen3-5-397b-a17b": 397,
    "glm-5": 744,
}
EXPERT_SHARE = (0.80, 1.0)
"""Experts hold at least 80 % of a MoE model's parameters and never more than all of them."""


def expert_parameters(shape):
    products = 3 if shape.activation == "swiglu" else 2
    routed = shape.num_experts * products * shape.moe_ffn_hidden * shape.dispatch_width
    return shape.num_moe_layers * (routed + products * shape.shared_expert_ffn_hidden * shape.hidden)


@pytest.mark.parametrize("name", PUBLISHED_BILLIONS)
def test_expert_parameters_fit_the_published_total(name):
    share = expert_parameters(find_model(name)) / (PUBLISHED_BILLIONS[name] * 1e9)
    assert EXPERT_SHARE[0] < share <= EXPERT_SHARE[1]


def test_every_entry_names_a_public_source_and_is_unique():
    entries = list_models()
    names = [key for entry in entries for key in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    assert len(entries) == 20  # 19 architectures, the two sizes of Qwen3-VL counted apart
    for entry in entries:
        repository, _, rest = entry.source.partition("@")
        assert repository.count("/") == 1
        assert ":" in rest


@pytest.mark.parametrize("text", ["qwen3-30b-a3b", "Qwen3_30B_A3B", "Qwen/Qwen3-30B-A3B", " qwen3 30b a3b "])
def test_lookup_is_forgiving(text):
    assert find_model(text).name == "qwen3-30b-a3b"


def test_alias_and_dots():
    assert find_model("GLM-4.5").name == "glm-4-5-355b"
    assert find_model("dsv3").name == "deepseek-v3"


def test_unknown_name_gets_close_matches():
    with pytest.raises(WorkloadError, match="unknown model 'qwen3-30b'") as caught:
        find_model("qwen3-30b")
    assert "qwen3-30b-a3b" in caught.value.fix


def test_incomplete_entries_are_listed_and_refused(monkeypatch):
    partial = catalogue._entry(
        {"name": "half", "title": "Half", "num_experts": 8, "topk": 2, "missing": ["hidden"], "source": "a document"}
    )
    assert partial.shape is None
    monkeypatch.setattr(catalogue, "list_models", lambda: (partial,))
    with pytest.raises(WorkloadError, match="does not state hidden") as caught:
        find_model("half")
    assert "config.json" in caught.value.fix


@pytest.mark.parametrize("entry", list_models(), ids=lambda entry: entry.name)
def test_every_listed_model_can_be_measured_and_names_its_source(entry):
    assert entry.shape is not None
    assert ":" in entry.source


def test_vision_language_models_dispatch_as_their_language_model_does():
    text, vision = find_model("qwen3-30b-a3b"), find_model("qwen3-vl-30b-a3b")
    assert vision.model_copy(update={"name": "", "title": "", "source": "", "notes": ""}) == text.model_copy(
        update={"name": "", "title": "", "source": "", "notes": ""}
    )


def test_latent_model_dispatches_its_latent_width():
    assert find_model("nemotron-3-super-120b-a12b").dispatch_width == 1024
    assert find_model("deepseek-v3").dispatch_width == 7168


def shape(**changes):
    base = {
        "name": "m",
        "hidden": 8,
        "num_layers": 2,
        "num_moe_layers": 2,
        "num_experts": 8,
        "topk": 2,
        "moe_ffn_hidden": 4,
    }
    return ModelShape(**{**base, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk": 9}, "topk=9 is larger than num_experts=8"),
        ({"num_moe_layers": 3}, "num_moe_layers=3 exceeds num_layers=2"),
        ({"router": RouterShape(num_groups=3, group_topk=1)}, "num_groups=3 does not divide"),
        ({"router": RouterShape(num_groups=4, group_topk=5)}, "group_topk=5 must be between"),
        ({"router": RouterShape(num_groups=8, group_topk=1)}, "fewer than topk=2"),
        ({"router": RouterShape(num_groups=4)}, "must be given together"),
        ({"attention": "mla"}, "mla sizes must be given together"),
    ],
)
def test_contradicting_sizes_are_refused(changes, message):
    with pytest.raises(WorkloadError, match=message):
        shape(**changes)
