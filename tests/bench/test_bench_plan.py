from __future__ import annotations

import pytest
from bench_helpers import ALLTOALL, HIERARCHICAL, TINY, faulty, tiny_plan
from hypothesis import given
from hypothesis import strategies as st

from moe_dispatch.bench.measure import TOKEN_STEP, tokens_for_budget
from moe_dispatch.bench.plan import Rendezvous
from moe_dispatch.core.errors import UsageError

ARMS = (ALLTOALL, HIERARCHICAL, faulty("third"))


def test_visits_run_forth_and_back() -> None:
    plan = tiny_plan(*ARMS)
    assert [plan.visit_order(visit) for visit in range(4)] == [(0, 1, 2), (2, 1, 0), (0, 1, 2), (2, 1, 0)]


def test_each_launch_starts_with_another_arm() -> None:
    starts = [tiny_plan(*ARMS, launch=launch).visit_order(0)[0] for launch in range(6)]
    assert starts == [0, 1, 2, 0, 1, 2]


@given(st.integers(0, 9), st.integers(1, 6))
def test_two_visits_put_every_arm_at_the_same_mean_position(launch: int, count: int) -> None:
    plan = tiny_plan(*(faulty(str(index)) for index in range(count)), launch=launch)
    orders = [plan.visit_order(visit) for visit in range(2)]
    assert {sum(order.index(arm) for order in orders) for arm in range(count)} == {count - 1}


def test_contract_holds_shape_tokens_and_measurement_but_no_arm() -> None:
    plan = tiny_plan(*ARMS, workload={"ep": 2}, site={"transport": "declared"})
    contract = plan.contract("force_balanced", 32, {"transport": "gloo", "ranks": 2}, {"torch": "2"})
    assert contract == plan.model_copy(update={"arms": ARMS[:1], "launch": 4}).contract(
        "force_balanced", 32, {"transport": "gloo", "ranks": 2}, {"torch": "2"}
    )
    assert contract.workload["ep"] == 2
    assert contract.workload["tokens_per_rank"] == contract.workload["tokens_per_rank_requested"] == 32
    assert contract.measure["level"] == "exchange"
    assert contract.site == {"transport": "declared", "ranks": 2}


def test_unknown_of_the_caller_does_not_hide_what_the_ranks_saw() -> None:
    plan = tiny_plan(*ARMS, stack={"nccl": None, "driver": None, "torch": "given"})
    contract = plan.contract("force_balanced", 32, {}, {"nccl": "none", "torch": "seen"})
    assert contract.stack == {"nccl": "none", "driver": None, "torch": "given"}


def test_contract_differs_where_a_routing_or_token_count_differs() -> None:
    plan = tiny_plan(*ARMS)
    base = plan.contract("force_balanced", 32, {}, {})
    assert base != plan.contract("zipf:1", 32, {}, {})
    assert base != plan.contract("force_balanced", 16, {}, {})


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="4 experts cannot be split over 3"):
        tiny_plan(ALLTOALL, world=3)


def test_an_arm_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="an arm is named twice: alltoall, alltoall"):
        tiny_plan(ALLTOALL, ALLTOALL)


def test_domain_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="ranks_per_domain=3"):
        tiny_plan(ALLTOALL, ranks_per_domain=3)


@pytest.mark.parametrize("endpoint", ["host", "host:", ":29400", "host:0", "host:70000", "host:x"])
def test_malformed_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Rendezvous(nnodes=2, node_rank=0, endpoint=endpoint)


def test_node_rank_outside_the_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match="node rank 2 does not exist among 2 nodes"):
        Rendezvous(nnodes=2, node_rank=2, endpoint="host:29400")


def test_endpoint_is_split() -> None:
    rendezvous = Rendezvous(nnodes=2, node_rank=0, endpoint="10.0.0.1:29400")
    assert (rendezvous.host, rendezvous.port) == ("10.0.0.1", 29400)


@given(
    requested=st.integers(1, 20_000),
    budget=st.floats(0.01, 100.0),
    microseconds=st.floats(1.0, 1e7),
    arms=st.integers(1, 4),
)
def test_fitted_tokens_keep_the_budget_and_the_floor(
    requested: int, budget: float, microseconds: float, arms: int
) -> None:
    plan = tiny_plan(*(faulty(str(i)) for i in range(arms)), tokens_per_rank=requested, time_budget_s=budget)
    least = min(plan.min_tokens, requested)
    tokens = tokens_for_budget(plan, microseconds, least)
    assert least <= tokens <= requested
    runs = arms * (plan.warmup + plan.planned_iterations)
    if tokens > least:
        assert runs * microseconds * tokens / least <= budget * 1e6 * (1 + 1e-9)
    if least < tokens < requested:
        assert tokens % TOKEN_STEP == 0


def test_no_budget_runs_all_tokens() -> None:
    assert tokens_for_budget(tiny_plan(ALLTOALL, tokens_per_rank=4096), 1e9, 256) == 4096


def test_plan_survives_the_file_between_launcher_and_ranks() -> None:
    plan = tiny_plan(*ARMS, fitted_tokens=16)
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan
    assert plan.model == TINY
