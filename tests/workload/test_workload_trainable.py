"""Shapes made smaller, and shapes that cannot be trained."""

from __future__ import annotations

import pytest

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.catalogue import find_model, list_models
from moe_dispatch.workload.trainable import canonical_routing, check_trainable, parameters_per_rank, parse_scale, scaled


def test_every_catalogue_shape_that_is_priced_can_be_scaled_down():
    tried = 0
    for entry in list_models():
        shape = find_model(entry.shape.name)
        if shape.attention == "other":
            continue
        small = scaled(shape, parse_scale("layers=2,hidden=64"))
        check_trainable(small)
        assert (small.num_layers, small.hidden, small.mtp_layers) == (2, 64, 0)
        assert small.num_moe_layers >= 1
        assert small.num_experts == shape.num_experts
        tried += 1
    assert tried >= 8


def test_scaled_shape_is_named_after_its_sizes():
    small = scaled(find_model("qwen3-30b-a3b"), parse_scale("hidden=256, layers=4"))
    assert small.name == "qwen3-30b-a3b[layers=4,hidden=256]"
    assert (small.moe_ffn_hidden, small.num_attention_heads, small.num_query_groups) == (96, 4, 1)


def test_no_scale_keeps_the_shape():
    whole = find_model("qwen3-30b-a3b")
    assert scaled(whole, {}) == whole


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth=2", r"'depth' is not known"),
        ("layers=2,layers=3", r"'layers' is given twice"),
        ("layers=two", r"'layers=two' needs a whole number"),
        ("layers=0", r"'layers=0' needs a whole number of at least 1"),
        ("layers", r"'layers' needs a whole number"),
    ],
)
def test_malformed_scale_is_refused(text, message):
    with pytest.raises(WorkloadError, match=message):
        parse_scale(text)


def test_more_choices_than_experts_are_refused():
    with pytest.raises(WorkloadError, match="topk=8 is larger than num_experts=4"):
        scaled(find_model("qwen3-30b-a3b"), parse_scale("experts=4"))


def test_attention_that_is_not_built_is_refused_by_name():
    with pytest.raises(WorkloadError, match=r"qwen3-next-80b-a3b: its attention .* is not built here"):
        check_trainable(find_model("qwen3-next-80b-a3b"))


def test_vocabulary_must_hold_all_bytes():
    with pytest.raises(WorkloadError, match="vocabulary 100 is smaller than the 256 bytes"):
        check_trainable(scaled(find_model("qwen3-30b-a3b"), parse_scale("vocab=100")))


def test_heads_must_divide_into_groups():
    with pytest.raises(WorkloadError, match="5 heads of width 128 cannot share 4 key-value heads"):
        check_trainable(scaled(find_model("qwen3-30b-a3b"), parse_scale("heads=5")))


def test_parameters_are_those_of_the_published_model():
    whole = parameters_per_rank(find_model("qwen3-30b-a3b"), 1)
    assert whole == pytest.approx(30.5e9, rel=0.01)  # "30.5B in total" on its model card
    assert parameters_per_rank(find_model("qwen3-30b-a3b"), 8) < whole / 4


def test_natural_routing_is_named_in_the_refusal():
    assert canonical_routing("natural") == "natural"
    assert canonical_routing("zipf:1.0") == "zipf:1"
    with pytest.raises(WorkloadError) as refused:
        canonical_routing("random")
    assert "natural" in refused.value.fix
