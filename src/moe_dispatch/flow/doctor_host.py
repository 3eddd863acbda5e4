"""What one rank finds out for its host: the machine, and how far each backend comes on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from moe_dispatch.bench.gate_levels import GateGroup, prove
from moe_dispatch.bench.gate_permute import probe_permute
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.flow.doctor_request import DoctorRequest
from moe_dispatch.site.gate import gate_all
from moe_dispatch.site.gate_result import GateResult
from moe_dispatch.site.known_good import nearest_known_good
from moe_dispatch.site.probe import probe
from moe_dispatch.site.rank_report import HostView
from moe_dispatch.site.stack import stack_fingerprint

_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def look_at_host(request: DoctorRequest, environment: Mapping[str, str], *, for_all_ranks: bool) -> HostView:
    """Probe this machine and gate the backends, all at once, each in child processes under a time limit.

    Args:
        for_all_ranks: see the GPUs of all ranks of this node, not only those left visible to this one.

    Raises:
        UsageError: an unknown backend.
    """
    specs = request.specs()
    stack = stack_fingerprint()
    seen = {name: value for name, value in environment.items() if not (for_all_ranks and name in _VISIBILITY)}
    with ThreadPoolExecutor(max_workers=1) as pool:
        site = pool.submit(probe, environment=seen)
        gates = gate_all(specs.values(), timeout_s=request.probe_s, workers=len(specs), site=site.result)
    where = site.result()
    findings = _known_good(gates.values(), stack)
    if request.prove is not None:
        group = GateGroup("cuda" if where.device == "cuda" else "cpu", request.prove)
        gates = {name: prove(specs[name], gate, group) for name, gate in gates.items()}
        permute = probe_permute().finding()
        findings += [permute] if permute is not None else []
    return HostView(site=where, gates=tuple(gates.values()), findings=tuple(findings))


def _known_good(gates: Iterable[GateResult], stack: Mapping[str, str | None]) -> list[Finding]:
    """For each package that is there and cannot be used, the combination that is known to work and is nearest."""
    found = []
    for gate in gates:
        nearest = nearest_known_good(stack, gate.backend) if gate.status == "broken" else None
        if nearest is not None:
            found.append(
                Finding(
                    id="nearest-known-good",
                    severity=Severity.INFO,
                    message=f"{gate.backend}: {nearest.text()}",
                    why="a combination that others ran is a shorter way than a version picked by hand",
                    source=nearest.combination.source,
                )
            )
    return found
