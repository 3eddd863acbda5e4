"""Permute, unpermute and routing map: kernels (on CUDA, else through the interpreter) and the torch path against numpy.

The interpreter truncates float32 to bfloat16 where a GPU rounds, so sums in bfloat16 are drawn from values whose every
partial sum is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch import kernels
from moe_dispatch.dispatch.permute import RoutingMap, permute, permute_fp8, routing_map, unpermute
from moe_dispatch.dispatch.rows import gather_rows, sum_rows

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
E4M3_UNIT_ROUNDOFF = 2.0**-4
E4M3_SMALLEST = 2.0**-9


@pytest.fixture(params=["kernels", "torch"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "kernels_for", lambda device: request.param == "kernels")


@dataclass(frozen=True)
class Routing:
    """One random routing: ids with dropped slots, experts that nobody chose, and the map by numpy."""

    ids: torch.Tensor
    experts: int
    multiple: int

    @property
    def expected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        flat = self.ids.cpu().numpy().reshape(-1)
        position = np.full(flat.size, -1)
        offsets, counts = [0], []
        for expert in range(self.experts):
            at = np.flatnonzero(flat == expert)
            position[at] = offsets[-1] + np.arange(at.size)
            counts.append(at.size)
            offsets.append(offsets[-1] + -(-at.size // self.multiple) * self.multiple)
        return position.reshape(self.ids.shape), np.array(counts), np.array(offsets)


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    topk = draw(st.sampled_from([1, 2, 3, 8, 32]))
    experts = topk + draw(st.integers(0, 40))
    tokens = draw(st.sampled_from([0, 1, 7, 40]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):  # a few favourites, many experts without a token
        score = rng.random((tokens, experts)) + np.where(np.arange(experts) < topk, 1.0, 0.0)
    else:
        score = rng.random((tokens, experts))
    ids = np.argsort(-score, axis=1)[:, :topk]
    ids[rng.random(ids.shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = -1
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    multiple = draw(st.sampled_from([1, 1, 4, 16]))
    return Routing(torch.from_numpy(ids).to(dtype).to(DEVICE), experts, multiple)


def bound_to_fixture(test: object) -> object:
    return settings(
        max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
    )(test)


def the_map(case: Routing) -> RoutingMap:
    return routing_map(case.ids, case.experts, multiple=case.multiple)


@bound_to_fixture
@given(case=routings())
def test_map_is_the_stable_order_by_expert(case: Routing) -> None:
    where, (position, counts, offsets) = the_map(case), case.expected
    np.testing.assert_array_equal(where.position_TK.cpu(), position)
    np.testing.assert_array_equal(where.counts_E.cpu(), counts)
    np.testing.assert_array_equal(where.offsets_E1.cpu(), offsets)
    assert where.rows >= offsets[-1]


def test_map_of_more_pairs_than_one_program_and_one_scan_step() -> None:
    rng = np.random.default_rng(3)
    tokens = 9000 if DEVICE == "cuda" else 70  # 140 blocks of 512 pairs on a GPU
    ids = np.argsort(rng.random((tokens, 64)), axis=1)[:, :8]
    case = Routing(torch.from_numpy(ids).to(DEVICE), 64, 1)
    position, counts, offsets = case.expected
    where = the_map(case)
    np.testing.assert_array_equal(where.position_TK.cpu(), position)
    np.testing.assert_array_equal(where.counts_E.cpu(), counts)
    np.testing.assert_array_equal(where.offsets_E1.cpu(), offsets)


@bound_to_fixture
@given(case=routings(), hidden=st.sampled_from([1, 5, 64, 130]), dtype=st.sampled_from(list(UNIT_ROUNDOFF)))
def test_permute_moves_rows_bitwise_and_zeroes_the_others(case: Routing, hidden: int, dtype: torch.dtype) -> None:
    tokens, topk = case.ids.shape
    x = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(1)).to(dtype).to(DEVICE)
    probs = torch.rand(tokens, topk, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    where, (position, _, _) = the_map(case), case.expected
    rows, row_probs = permute(x, where, probs)
    want = torch.zeros(where.rows, hidden, dtype=dtype)
    want_probs = torch.zeros(where.rows)
    for t, k in np.argwhere(position >= 0):
        want[position[t, k]] = x[t].cpu()
        want_probs[position[t, k]] = probs[t, k].cpu()
    assert torch.equal(rows.cpu(), want)
    assert row_probs is not None
    assert torch.equal(row_probs.cpu(), want_probs)


@bound_to_fixture
@given(case=routings(), hidden=st.sampled_from([1, 5, 130]), dtype=st.sampled_from(list(UNIT_ROUNDOFF)))
def test_plain_sum_is_exact_where_partial_sums_are(case: Routing, hidden: int, dtype: torch.dtype) -> None:
    where, (position, _, _) = the_map(case), case.expected
    y = torch.randint(-3, 4, (where.rows, hidden), generator=torch.Generator().manual_seed(3)).to(dtype)
    want = torch.zeros(case.ids.shape[0], hidden)
    for t, k in np.argwhere(position >= 0):
        want[t] += y[position[t, k]].float()
    assert torch.equal(unpermute(y.to(DEVICE), where).cpu().float(), want)


@bound_to_fixture
@given(case=routings(), hidden=st.sampled_from([1, 5, 130]), dtype=st.sampled_from([torch.float32, torch.float16]))
def test_weighted_sum_and_all_gradients_are_those_of_float64(case: Routing, hidden: int, dtype: torch.dtype) -> None:
    tokens, topk = case.ids.shape
    where, (position, _, _) = the_map(case), case.expected
    g = torch.Generator().manual_seed(4)
    x = torch.randn(tokens, hidden, generator=g).to(dtype).to(DEVICE).requires_grad_()
    w = torch.rand(tokens, topk, generator=g).to(DEVICE).requires_grad_()
    out_grad = torch.randn(tokens, hidden, generator=g).to(dtype).to(DEVICE)
    rows, _ = permute(x, where)
    rows.retain_grad()
    out = unpermute(rows, where, w)
    out.backward(out_grad)
    assert rows.grad is not None
    assert x.grad is not None
    assert w.grad is not None
    x64, w64, g64 = x.detach().cpu().double(), w.detach().cpu().double(), out_grad.cpu().double()
    there = torch.from_numpy(position >= 0)
    share = (w64 * there).sum(1, keepdim=True)
    u = UNIT_ROUNDOFF[dtype]
    fp32 = (topk + 2) * UNIT_ROUNDOFF[torch.float32]  # K products, K - 1 sums and the scale, each rounded once
    assert bool(((out.detach().cpu().double() - x64 * share).abs() <= (u + fp32) * x64.abs() * share + 1e-30).all())
    assert bool(((x.grad.cpu().double() - g64 * share).abs() <= (2 * u + fp32) * g64.abs() * share * 2 + 1e-7).all())
    dots = (x64 * g64).sum(1, keepdim=True) * there
    size = (x64 * g64).abs().sum(1, keepdim=True)
    assert bool(((w.grad.cpu().double() - dots).abs() <= (hidden + 1) * UNIT_ROUNDOFF[torch.float32] * size).all())


@bound_to_fixture
@given(case=routings(), hidden=st.sampled_from([1, 128, 200]))
def test_fp8_rows_are_their_values_within_half_a_step(case: Routing, hidden: int) -> None:
    # numpy has no e4m3, so without a GPU the torch path is tested under both names
    x = torch.randn(case.ids.shape[0], hidden, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16).to(DEVICE)
    where, (position, _, _) = the_map(case), case.expected
    q, scale = permute_fp8(x, where)
    back = q.float().cpu() * scale.cpu().repeat_interleave(128, 1)[:, :hidden]
    filled = position[position >= 0]
    want = torch.zeros_like(back)
    for t, k in np.argwhere(position >= 0):
        want[position[t, k]] = x[t].float().cpu()
    step = E4M3_UNIT_ROUNDOFF * want.abs() + E4M3_SMALLEST * scale.cpu().repeat_interleave(128, 1)[:, :hidden]
    assert bool(((back - want).abs() <= step).all())
    untouched = np.setdiff1d(np.arange(where.rows), filled)
    assert not back[untouched].any()


def test_gather_and_bag_sums_of_the_other_dispatchers() -> None:
    source = torch.arange(60.0, device=DEVICE).view(10, 6)
    index = torch.tensor([9, 0, 0, 3], device=DEVICE)
    assert torch.equal(gather_rows(source, index, source.new_empty(4, 6)), source[index])
    offsets = torch.tensor([0, 2, 2, 4], device=DEVICE)
    sums = sum_rows(source, index, offsets, source.new_empty(3, 6), whole=True)
    assert torch.equal(sums, torch.stack([source[9] + source[0], torch.zeros_like(source[0]), source[0] + source[3]]))


@pytest.mark.parametrize(
    ("ids", "experts", "what"),
    [
        (torch.zeros(4, 33, dtype=torch.int64), 64, "32"),
        (torch.zeros(4, 2), 8, "float32"),
        (torch.zeros(4, 2, dtype=torch.int64), 9000, "9000"),
        (torch.zeros(4, dtype=torch.int64), 8, "(4,)"),
    ],
)
def test_impossible_routings_are_refused_by_name(ids: torch.Tensor, experts: int, what: str) -> None:
    with pytest.raises(UsageError, match=str(what).replace("(", r"\(").replace(")", r"\)")):
        routing_map(ids.to(DEVICE), experts)


def test_rows_of_another_map_are_refused() -> None:
    where = routing_map(torch.zeros(3, 1, dtype=torch.int64, device=DEVICE), 2)
    with pytest.raises(UsageError, match="4 rows"):
        unpermute(torch.zeros(4, 2, device=DEVICE), where)
