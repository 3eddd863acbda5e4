"""The parts below a dispatcher: pooled buffers, sums of rows, stable order."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_dispatch.dispatch.order import inverse_order, stable_order
from moe_dispatch.dispatch.pool import BufferPool
from moe_dispatch.dispatch.rows import offsets_from_counts, sum_rows

CPU = torch.device("cpu")
LARGE = (1024, 256)  # 1 MB of float32: pooled


def test_memory_is_reused_once_every_view_is_gone() -> None:
    pool = BufferPool(CPU)
    first = pool.empty(LARGE, torch.float32)
    address, view = first.data_ptr(), first[3:5]
    del first
    second = pool.empty(LARGE, torch.float32)
    assert second.data_ptr() != address
    del view
    third = pool.empty((1000, 256), torch.float32)
    assert third.data_ptr() == address
    del second, third
    assert pool.leased_bytes == 0


def test_a_tensor_saved_for_backward_keeps_its_memory() -> None:
    pool = BufferPool(CPU)
    weight = torch.ones(LARGE, requires_grad=True)
    lease = pool.empty(LARGE, torch.float32)
    lease.fill_(3.0)
    out = (weight * lease).sum()
    del lease
    other = pool.empty(LARGE, torch.float32)
    other.fill_(7.0)
    out.backward()
    assert weight.grad is not None
    assert bool((weight.grad == 3.0).all())


def test_free_memory_stays_below_the_peak_and_clear_drops_it() -> None:
    pool = BufferPool(CPU)
    leases = [pool.empty(((1 + i) * 256, 256), torch.float32) for i in range(6)]
    peak = pool.leased_bytes
    del leases
    kept = pool.empty((9 * 256, 256), torch.float32)
    assert sum(buffer.nbytes for buffer in pool._free) <= peak
    pool.clear()
    assert pool._free == []
    del kept
    assert pool.leased_bytes == 0
    assert pool._free == []


class _CollectingList(list[Any]):
    """Runs the garbage collector when it is read, as any allocation inside the pool's lock may."""

    def __iter__(self) -> Iterator[Any]:
        gc.collect()
        return super().__iter__()


def test_a_lease_in_a_reference_cycle_may_die_while_the_pool_is_locked() -> None:
    pool = BufferPool(CPU)
    done = threading.Event()

    def lease_in_a_cycle() -> None:
        cycle: list[object] = [pool.empty(LARGE, torch.float32)]
        cycle.append(cycle)
        pool._free = _CollectingList(pool._free)
        del cycle
        pool.empty(LARGE, torch.float32)
        done.set()

    gc.disable()
    try:
        threading.Thread(target=lease_in_a_cycle, daemon=True).start()
        assert done.wait(30)
    finally:
        gc.enable()
    assert pool.leased_bytes == 0


def test_bfloat16_leases_have_the_asked_shape_and_zero_rows_work() -> None:
    pool = BufferPool(CPU)
    assert pool.empty((512, 300), torch.bfloat16).shape == (512, 300)
    assert pool.empty((0, 300), torch.bfloat16).shape == (0, 300)


@given(counts=st.lists(st.integers(0, 5), max_size=40), hidden=st.sampled_from([1, 7, 64]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_sum_rows_is_the_float64_sum_rounded_once(counts: list[int], hidden: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randn(30, hidden, generator=generator)
    index = torch.randint(0, 30, (sum(counts),), generator=generator)
    offsets = offsets_from_counts(torch.tensor(counts, dtype=torch.int64))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = source.to(dtype)
        out = sum_rows(rows, index, offsets, torch.full((len(counts), hidden), 9.0, dtype=dtype))
        for bag, part in enumerate(index.split(counts) if counts else []):
            terms = rows[part].double()
            # one rounding of the result, and float32 accumulation of at most 5 terms
            bound = torch.finfo(dtype).eps / 2 + 5 * 2.0**-24
            error = (out[bag].double() - terms.sum(0)).abs()
            assert bool((error <= bound * terms.abs().sum(0)).all())


def test_sum_rows_crosses_its_internal_blocks() -> None:
    bags, hidden = 700, 1024  # 4 KB rows: blocks of 256
    index = torch.arange(bags * 2) % 50
    source = torch.arange(50.0)[:, None].expand(50, hidden).contiguous()
    offsets = offsets_from_counts(torch.full((bags,), 2))
    out = sum_rows(source, index, offsets, torch.empty(bags, hidden))
    assert torch.equal(out[:, 0], (index[0::2] + index[1::2]).float())
    assert torch.equal(out[:, -1], out[:, 0])


@given(keys=st.lists(st.integers(0, 300), max_size=200), upper=st.sampled_from([300, 40_000]))
@settings(max_examples=60, deadline=None)
def test_stable_order_sorts_and_keeps_ties(keys: list[int], upper: int) -> None:
    order = stable_order(torch.tensor(keys, dtype=torch.int64), upper).tolist()
    assert order == sorted(range(len(keys)), key=lambda i: keys[i])
    inverse = inverse_order(torch.tensor(order, dtype=torch.int64))
    assert [order[i] for i in inverse.tolist()] == list(range(len(keys)))
