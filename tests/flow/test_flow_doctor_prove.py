"""`doctor --prove`: backends are made on real ranks; broken packages bring the nearest combination that works."""

from __future__ import annotations

import pytest

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.finding import Severity
from moe_dispatch.flow.doctor_host import _known_good, look_at_host
from moe_dispatch.flow.doctor_request import DoctorRequest
from moe_dispatch.site.gate_result import GateResult


@pytest.mark.gloo
def test_levels_above_supported_are_reached_on_ranks_started_here() -> None:
    request = DoctorRequest(backends=("alltoall", "hybridep"), prove=2, alone=True)
    view = look_at_host(request, {}, for_all_ranks=False)
    levels = {gate.backend: gate.level_reached for gate in view.gates}
    assert levels == {"alltoall": "moves-tokens", "hybridep": "none"}


def test_a_broken_package_brings_the_nearest_known_good_combination() -> None:
    broken = GateResult(
        backend="deepep", level_reached="installed", reason_class="torch-abi-mismatch", reason="built for another torch"
    )
    absent = GateResult(backend="hybridep", reason_class="not-installed", reason="deep_ep is not installed")
    (finding,) = _known_good([broken, absent], {"torch": "2.13.0+cpu"})
    assert finding.id == "nearest-known-good"
    assert finding.severity is Severity.INFO
    assert finding.message.startswith("deepep: ")
    assert finding.source


def test_no_ranks_is_no_number_of_ranks() -> None:
    with pytest.raises(UsageError, match="prove=0"):
        DoctorRequest(prove=0).check()
