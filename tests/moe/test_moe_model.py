"""The whole model: the same loss and gradients at every EP size, recomputation, balancing, and that it learns."""

from __future__ import annotations

import hashlib
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.moe.attention import make_attention
from moe_dispatch.moe.data import TextBatches
from moe_dispatch.workload.catalogue import find_model
from moe_dispatch.workload.trainable import parse_scale, scaled
from moe_dispatch.workload.training_text import read_text

sys.path.append(str(Path(__file__).parents[1] / "dispatch"))
from gloo_ranks import run_ranks
from training_ranks import (
    bias_after,
    first_gradients,
    losses,
    recomputed_steps,
)

EPS32 = torch.finfo(torch.float32).eps
CHAIN_TOLERANCE = 512 * EPS32
"""Relative to the norm of a gradient. A different EP size changes only the order of float32 sums: over K rows, over the
tokens of an expert, over ranks. Each of the 2 layers has about 10 products of at most 256 terms forward and twice as
many back; errors of independent sums add in quadrature, sqrt(256) * sqrt(60) = 124 roundings, and 4 times that is the
bound."""
LOSS_TOLERANCE = 16 * EPS32
"""Relative: the loss is a mean of 256 terms, summed in another order (sqrt(256) roundings)."""


def assert_same_first_step(got, wanted):
    assert got["loss"] == pytest.approx(wanted["loss"], rel=LOSS_TOLERANCE)
    assert got["grads"].keys() == wanted["grads"].keys()
    for name, gradient in wanted["grads"].items():
        size = np.linalg.norm(gradient)
        assert size > 0, f"{name} has no gradient to compare"
        off = np.linalg.norm(got["grads"][name] - gradient) / size
        assert off <= CHAIN_TOLERANCE, f"{name}: {off / EPS32:.0f} roundings"


@pytest.mark.gloo
def test_loss_and_gradients_depend_on_neither_layout_nor_dispatcher_nor_recomputation():
    (alone,) = run_ranks(first_gradients, 1, [(1, {})])[0]
    cases = [
        (1, {}),
        (2, {}),
        (4, {}),
        (4, {"dispatcher": "hierarchical"}),
        (2, {"recompute": "selective"}),
        (4, {"recompute": "full", "dispatcher": "hierarchical"}),
    ]
    for got in run_ranks(first_gradients, 4, cases)[0]:
        assert_same_first_step(got, alone)


@pytest.mark.gloo
def test_loss_falls_on_the_text():
    seen = run_ranks(losses, 2, 2, 50, {"routing": "natural"})[0]
    assert sum(seen[-10:]) / 10 < 0.7 * seen[0]


@pytest.mark.gloo
def test_latent_attention_with_dense_layers_trains():
    seen = run_ranks(losses, 2, 2, 6, {"model": "kimi-k2", "scale": SMALL_LATENT, "routing": "natural"})[0]
    assert seen[-1] < seen[0]


SMALL_LATENT = "layers=2,hidden=64,experts=8,topk=2,ffn=16,dense_ffn=32,heads=2"


@pytest.mark.gloo
def test_selection_bias_moves_against_the_load():
    bias = run_ranks(bias_after, 2, 2)
    assert bias[0] == bias[1], "ranks must agree"
    values = {round(value, 6) for value in bias[0]}
    assert values <= {-1e-3, 0.0, 1e-3}
    assert {-1e-3, 1e-3} <= values


@pytest.mark.gloo
def test_recomputation_replays_the_choices_of_the_forward_pass():
    assert run_ranks(recomputed_steps, 2, 1000) == [1000, 1000]


def test_attention_is_causal():
    shape = scaled(find_model("qwen3-30b-a3b"), parse_scale("layers=1,hidden=32"))
    for model in (shape, scaled(find_model("kimi-k2"), parse_scale(SMALL_LATENT))):
        attention = make_attention(model, positions=8, dtype=torch.float32, device="cpu", seed=1)
        x = torch.randn(1, 8, model.hidden, generator=torch.Generator().manual_seed(0))
        changed = x.clone()
        changed[:, 5:] += 1
        before, after = attention(x), attention(changed)
        torch.testing.assert_close(after[:, :5], before[:, :5])
        assert not torch.allclose(after[:, 5:], before[:, 5:])


def test_attention_sees_positions():
    shape = scaled(find_model("qwen3-30b-a3b"), parse_scale("layers=1,hidden=32"))
    attention = make_attention(shape, positions=8, dtype=torch.float32, device="cpu", seed=1)
    x = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(0))
    swapped = x[:, [1, 0, *range(2, 8)]]
    assert not torch.allclose(attention(x)[:, 7], attention(swapped)[:, 7])


def test_shipped_text_is_what_its_readme_says():
    text, name = read_text(None)
    assert name == "paradise_lost"
    digest = hashlib.sha256(text).hexdigest()
    readme = resources.files("moe_dispatch.workload").joinpath("texts", "README.md").read_text(encoding="utf-8")
    assert digest in readme


def test_batches_are_the_same_for_any_split_of_a_step():
    batches = TextBatches(bytes(range(256)) * 4, 16, seed=3, device=torch.device("cpu"), name="ramp")
    whole, targets = batches.batch(7, range(4))
    halves = torch.cat([batches.batch(7, (0, 1))[0], batches.batch(7, (2, 3))[0]])
    assert torch.equal(whole, halves)
    assert torch.equal(targets[:, :-1], whole[:, 1:])
    assert not torch.equal(whole, batches.batch(8, range(4))[0])


def test_text_shorter_than_a_sequence_is_refused():
    with pytest.raises(WorkloadError, match=r"text note has 5 bytes; a sequence of 8 tokens needs 9"):
        TextBatches(b"short", 8, seed=0, device=torch.device("cpu"), name="note")


def test_unreadable_text_is_refused(tmp_path):
    with pytest.raises(WorkloadError, match="cannot be read: No such file"):
        read_text(str(tmp_path / "absent.txt"))
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(b"not gzip")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_text(str(damaged))
