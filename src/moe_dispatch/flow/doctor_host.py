"""What one rank finds out for its host: the machine, and how far each backend comes on it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from moe_dispatch.flow.doctor_request import DoctorRequest
from moe_dispatch.site.gate import gate_all
from moe_dispatch.site.probe import probe
from moe_dispatch.site.rank_report import HostView

_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def look_at_host(request: DoctorRequest, environment: Mapping[str, str], *, for_all_ranks: bool) -> HostView:
    """Probe this machine and gate the backends, all at once, each in child processes under a time limit.

    Args:
        for_all_ranks: see the GPUs of all ranks of this node, not only those left visible to this one.

    Raises:
        UsageError: an unknown backend.
    """
    specs = request.specs()
    seen = {name: value for name, value in environment.items() if not (for_all_ranks and name in _VISIBILITY)}
    with ThreadPoolExecutor(max_workers=1) as pool:
        site = pool.submit(probe, environment=seen)
        gates = gate_all(specs.values(), timeout_s=request.probe_s, workers=len(specs), site=site.result)
        return HostView(site=site.result(), gates=tuple(gates.values()))
