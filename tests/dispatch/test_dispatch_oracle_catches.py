"""The oracle must fail a dispatcher that is wrong in any one way: a check that cannot fail proves nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks

from moe_dispatch.dispatch.alltoall import AllToAllDispatcher, AllToAllPlan
from moe_dispatch.dispatch.reference import OracleReport, check_dispatcher

pytestmark = pytest.mark.gloo


class Faulty(AllToAllDispatcher):
    """alltoall with one fault, on rank 1 only."""

    fault = ""

    def _is(self, fault: str) -> bool:
        return self.rank == 1 and self.fault == fault

    def make_plan(self, ids_TK: torch.Tensor, num_tokens: int) -> AllToAllPlan:
        plan = super().make_plan(ids_TK, num_tokens)
        if self._is("counts") and plan.tokens_per_expert_e.sum() > 0:
            plan.tokens_per_expert_e.copy_(plan.tokens_per_expert_e.roll(1))
        return plan

    def scatter_finish(self, handle: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows, probs = super().scatter_finish(handle)
        if rows.shape[0] < 3:
            return rows, probs
        if probs is not None and self._is("duplicate_row"):
            rows[2] = rows[0]
        if probs is not None and self._is("one_bit"):
            rows[2, -1] += 1
        if probs is not None and self._is("swapped_probs"):
            probs[[0, 2]] = probs[[2, 0]]
        if probs is None and self._is("combine_gradient"):
            rows[0] *= 2
        return rows, probs

    def gather_finish(self, handle: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        out, probs = super().gather_finish(handle)
        if not out.shape[0]:
            return out, probs
        backward = probs is not None
        if not backward and self._is("stale_sum"):
            out[0] += 1
        if not backward and self._is("imprecise"):
            out.mul_(1 + 2.0**-6)
        if not backward and self._is("nan_in_last_row"):
            out[-1] = float("nan")
        if backward and self._is("input_gradient"):
            out[0] += 1
        if probs is not None and self._is("probs_gradient"):
            probs[0, 0] += 1
        return out, probs


def _check(rank: int, world: int, fault: str) -> OracleReport:
    dispatcher = Faulty(dist.group.WORLD, 8, 16, 2, 24, torch.float32, "cpu", {})
    dispatcher.fault = fault
    return check_dispatcher(dispatcher, 5)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("counts", "dispatch"),
        ("duplicate_row", "dispatch"),
        ("one_bit", "dispatch"),
        ("swapped_probs", "dispatch"),
        ("stale_sum", "combine_exact"),
        ("imprecise", "combine_random"),
        ("nan_in_last_row", "combine_random"),
        ("input_gradient", "grad_input_exact"),
        ("probs_gradient", "grad_probs_exact"),
        ("combine_gradient", "grad_input_exact"),
    ],
)
def test_names_the_fault(fault: str, check: str) -> None:
    reports = run_ranks(_check, 2, fault)
    assert reports[0] == reports[1]
    assert not reports[0].passed
    assert not reports[0].checks[f"uniform/{check}"]
    # A wrong gradient of combine shows at the token, which need not live on the faulty rank.
    assert ("rank" if fault == "combine_gradient" else "rank 1") in reports[0].detail


def test_the_same_class_without_a_fault_passes() -> None:
    assert all(report.passed for report in run_ranks(_check, 2, ""))


class AnyOrder(AllToAllDispatcher):
    """Right, but with the rows of each expert in another order: the oracle must accept it."""

    def scatter_finish(self, handle: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows, probs = super().scatter_finish(handle)
        order = _flip(handle.plan.tokens_per_expert_e)
        return rows[order], None if probs is None else probs[order]

    def gather_start(self, y_RH: torch.Tensor, probs_grad_R: torch.Tensor | None, plan: AllToAllPlan) -> Any:
        order = _flip(plan.tokens_per_expert_e)
        return super().gather_start(y_RH[order], None if probs_grad_R is None else probs_grad_R[order], plan)


def _flip(counts: torch.Tensor) -> torch.Tensor:
    parts = torch.arange(int(counts.sum())).split(counts.tolist())
    return torch.cat([part.flip(0) for part in parts]) if parts else torch.empty(0, dtype=torch.int64)


def _check_any_order(rank: int, world: int) -> OracleReport:
    return check_dispatcher(AnyOrder(dist.group.WORLD, 8, 16, 2, 24, torch.bfloat16, "cpu", {}), 5)


def test_row_order_inside_an_expert_is_free() -> None:
    reports: list[OracleReport] = run_ranks(_check_any_order, 2)
    assert [r.detail for r in reports if not r.passed] == []
