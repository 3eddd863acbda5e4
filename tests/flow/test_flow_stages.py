"""Which arms a stage holds, and which variants survive screening."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import pytest

from moe_dispatch.core.backend import BackendSpec, Knob
from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UnsupportedByBackend, UsageError
from moe_dispatch.evidence.record import (
    Contract,
    Correctness,
    Iteration,
    Performance,
    Provenance,
    RunRecord,
    RunStatus,
)
from moe_dispatch.flow.choices import parse_choice
from moe_dispatch.flow.resume import require_same_stack
from moe_dispatch.flow.stages import (
    VARIANT_GAIN,
    StageSite,
    arm_of,
    best_variants,
    known,
    stack_fields,
    stage_plan,
    sweep,
)
from moe_dispatch.workload.workload import load_workload

KNOBBED = BackendSpec(
    name="knobbed",
    title="t",
    summary="s",
    kind="builtin",
    target="m:C",
    knobs={
        "chunks": Knob(type="int", default=4, sweep=(1, 4, 8)),
        "form": Knob(type="str", default="a", allowed=("a", "b"), sweep=("a", "b")),
        "silent": Knob(type="int", default=1),
    },
)


def record(
    choice: Choice, totals: Sequence[float], status: RunStatus = RunStatus.OK, stack: dict[str, object] | None = None
) -> RunRecord:
    iterations = tuple(
        Iteration(pass_index=index, latency_us={"total": total}, slowest_rank=0) for index, total in enumerate(totals)
    )
    good = status is RunStatus.OK
    return RunRecord(
        run_id=f"{choice.label}-{totals}",
        session="s",
        stage="screen",
        launch=0,
        choice=choice,
        status=status,
        contract=Contract(workload={}, measure={}, site={}, stack=stack or {}),
        reason="" if good else "broken",
        correctness=Correctness(passed=True) if good else None,
        performance=Performance(iterations=iterations, host_of_rank=("h",)) if good else None,
        provenance=Provenance(created=datetime(2026, 1, 1, tzinfo=timezone.utc), tool_version="0", host="h"),
    )


def test_sweep_has_the_default_once_and_each_other_value() -> None:
    assert [choice.label for choice in sweep(KNOBBED)] == [
        "knobbed",
        "knobbed(chunks=1)",
        "knobbed(chunks=8)",
        "knobbed(form=b)",
    ]


def test_sweep_keeps_what_the_user_fixed() -> None:
    labels = [choice.label for choice in sweep(KNOBBED, {"chunks": 2})]
    assert labels == ["knobbed(chunks=2)", "knobbed(chunks=2, form=b)"]


def test_knobs_between_domains_are_not_swept_inside_one() -> None:
    spec = KNOBBED.model_copy(update={"knobs": {"chunks": Knob(type="int", sweep=(1, 2), between_domains=True)}})
    assert [choice.label for choice in sweep(spec, one_domain=True)] == ["knobbed"]
    assert len(sweep(spec)) == 3


def test_unswept_sm_knob_is_labelled_untuned() -> None:
    spec = KNOBBED.model_copy(update={"knobs": {"num_sms": Knob(type="int", default=20, sm=True)}})
    assert arm_of(spec, Choice(dispatcher="knobbed")).labels == ("untuned",)
    assert arm_of(spec, Choice(dispatcher="knobbed", knobs={"num_sms": 24})).labels == ()
    assert arm_of(KNOBBED, Choice(dispatcher="knobbed")).labels == ()


def test_backend_without_adapter_is_refused_with_what_can_be_done() -> None:
    spec = KNOBBED.model_copy(update={"target": None})
    with pytest.raises(UnsupportedByBackend, match="no adapter"):
        arm_of(spec, Choice(dispatcher="knobbed"))


def test_best_variants_rank_by_median_with_the_baseline_first() -> None:
    fast = Choice(dispatcher="fast")
    slow, tuned = Choice(dispatcher="slow"), Choice(dispatcher="slow", knobs={"chunks": 8})
    records = [
        record(slow, [9e6, 9e6, 9e6]),
        record(tuned, [3e6, 3e6, 90e6]),  # one outlier does not decide
        record(Choice(dispatcher="alltoall"), [8e6, 8e6]),
        record(fast, [1e6, 2e6]),
        record(Choice(dispatcher="fast", knobs={"chunks": 1}), [], RunStatus.CRASHED),
    ]
    best = best_variants(records)
    assert [(entry.choice.label, entry.seconds) for entry in best] == [
        ("alltoall", 8.0),
        ("fast", 1.5),
        ("slow(chunks=8)", 3.0),
    ]


def test_default_knobs_stand_unless_a_variant_is_clearly_faster() -> None:
    default, near, far = (Choice(dispatcher="d", knobs=knobs) for knobs in ({}, {"k": 1}, {"k": 2}))
    times = {"default": 100e6, "near": 100e6 * (1 - 0.9 * VARIANT_GAIN), "far": 100e6 * (1 - 1.1 * VARIANT_GAIN)}
    kept = best_variants([record(default, [times["default"]]), record(near, [times["near"]])])
    assert [entry.choice.label for entry in kept] == ["d"]
    kept = best_variants(
        [record(default, [times["default"]]), record(near, [times["near"]]), record(far, [times["far"]])]
    )
    assert [entry.choice.label for entry in kept] == ["d(k=2)"]


def test_absent_is_said_and_not_left_unknown() -> None:
    assert known({"num_groups": None, "tp": 1}) == {"num_groups": "none", "tp": 1}


def test_nccl_is_left_to_the_ranks_where_no_package_names_it() -> None:
    assert stack_fields({"torch": "2.13.0", "nccl": None, "deep_ep": None}) == {"torch": "2.13.0", "deep_ep": "none"}
    assert stack_fields({"nccl": "2.27.5"}) == {"nccl": "2.27.5"}


def test_contract_of_a_stage_leaves_nothing_unknown_but_tokens() -> None:
    plan = _plan(stack={"torch": "2.13.0"})
    contract = plan.contract("force_balanced", None, {}, {})
    assert [name for name, value in contract.workload.items() if value is None] == ["tokens_per_rank"]


def _plan(stack: dict[str, object]) -> object:
    workload = load_workload("qwen3-30b-a3b", ep=4)
    shared = StageSite(session="s", device="cpu", world=4, ranks_per_domain=None, tokens=256, site={}, stack=stack)
    arms = [arm_of(KNOBBED, Choice(dispatcher="knobbed"))]
    return stage_plan("screen", "exchange", arms, workload, ["force_balanced"], shared, (1, 2, 1))


def test_resume_refuses_a_changed_stack_by_name() -> None:
    earlier = [record(Choice(dispatcher="knobbed"), [1.0], stack={"torch": "2.12.0", "python": "3.11"})]
    with pytest.raises(UsageError, match=r"stack\.torch was '2\.12\.0', is '2\.13\.0'"):
        require_same_stack(earlier, _plan(stack={"torch": "2.13.0", "python": "3.11"}))
    require_same_stack(earlier, _plan(stack={"torch": "2.12.0", "python": "3.11"}))


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("alltoall", "alltoall"),
        ("hierarchical:chunks=8", "hierarchical(chunks=8)"),
        ("hierarchical:chunks=8,domain_size=2", "hierarchical(chunks=8, domain_size=2)"),
    ],
)
def test_choices_as_people_write_them(text: str, label: str) -> None:
    assert parse_choice(text).label == label


@pytest.mark.parametrize("text", ["hierarchicl", "hierarchical:chunks", "hierarchical:chunks=0", "alltoall:chunks=2"])
def test_wrong_choices_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError):
        parse_choice(text)
