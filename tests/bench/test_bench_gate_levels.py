"""The gate's upper levels on real groups of processes, with dispatchers that fail in one way each."""

from __future__ import annotations

import pytest
from gate_backends import GIVES_UP_S, SOON_S, package

from moe_dispatch.bench.gate_levels import GateGroup, prove
from moe_dispatch.core.builtin import load_builtin
from moe_dispatch.site.gate_result import LEVELS, GateResult, LevelResult

pytestmark = [pytest.mark.gloo, pytest.mark.usefixtures("ranks_find_faulty_backends")]

TWO = GateGroup("cpu", 2)


def imported(name: str = "made-up", **changes: object) -> GateResult:
    """A result that reached `imports`."""
    states = ("passed", "passed", "not-run", "not-run", "not-run")
    levels = tuple(LevelResult(level=level, state=state) for level, state in zip(LEVELS, states, strict=True))
    fields = {"backend": name, "available": True, "level_reached": "imports", "levels": levels}
    return GateResult.model_validate(fields | changes)


def states(result: GateResult) -> list[str]:
    return [level.state for level in result.levels[3:]]


def test_alltoall_moves_tokens() -> None:
    result = prove(load_builtin("alltoall"), imported("alltoall"), TWO)
    assert (result.level_reached, result.available, states(result)) == ("moves-tokens", True, ["passed", "passed"])
    top = result.level("moves-tokens")
    assert top is not None
    assert int(top.evidence[0].split()[0]) > 10


FAILURES = [
    (
        "RefusesToBuild",
        "other",
        ["failed", "not-run"],
        "rank 1, while it made its buffer: RuntimeError: no",
    ),
    ("NeedsNewerNccl", "nccl-too-old", ["failed", "not-run"], "requires NCCL >= 2.30.4"),
    ("CrashesAtBuild", "crashed", ["failed", "not-run"], "rank 1 was ended by signal 11 while it made its buffer"),
    ("LosesTokens", "wrong-result", ["passed", "failed"], "not as the oracle says"),
    ("CrashesInDispatch", "crashed", ["passed", "failed"], "was ended by signal 9 while it moved tokens"),
]


@pytest.mark.parametrize(("target", "reason_class", "expected", "part"), FAILURES)
def test_a_backend_that_fails(target: str, reason_class: str, expected: list[str], part: str) -> None:
    result = prove(package(target), imported(), TWO)
    assert (result.reason_class, result.available, states(result)) == (reason_class, False, expected), result
    assert part in result.reason
    assert result.fix


@pytest.mark.parametrize(
    ("target", "limit_s", "reason_class", "expected"),
    [
        ("HangsAtBuild", SOON_S, "init-timeout", ["failed", "not-run"]),
        ("HangsInDispatch", GIVES_UP_S, "exchange-timeout", ["passed", "failed"]),
    ],
)
def test_a_backend_that_hangs_is_ended(target: str, limit_s: float, reason_class: str, expected: list[str]) -> None:
    result = prove(package(target), imported(), TWO, timeout_s=limit_s)
    assert (result.reason_class, states(result)) == (reason_class, expected), result
    assert f"for more than {limit_s:g} s on rank" in result.reason


def test_without_an_adapter_nothing_is_started() -> None:
    result = prove(package("Any").model_copy(update={"target": None}), imported(), TWO)
    assert {level.reason for level in result.levels[3:]} == {"no adapter in this release"}
    assert result.available


def test_a_device_that_the_backend_does_not_serve() -> None:
    spec = package("Any").model_copy(update={"platforms": ("cuda",)})
    result = prove(spec, imported(), TWO)
    assert {level.reason for level in result.levels[3:]} == {"needs cuda; this group is on cpu"}


def test_what_failed_below_is_left_as_it_is() -> None:
    failed = imported(available=False, reason_class="crashed", reason="it crashed")
    assert prove(package("Any"), failed, TWO) == failed
