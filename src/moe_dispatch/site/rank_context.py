"""Which rank of which launch this process is, from the variables of torchrun, Slurm's srun or Open MPI's mpirun.

torchrun: pytorch/pytorch docs/source/elastic/run.rst; Slurm: srun manual, "OUTPUT ENVIRONMENT VARIABLES"; Open MPI:
mpirun manual, "MCA and environment". Without any of them the process is a launch of its own.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from moe_dispatch.core.errors import UsageError

Launcher = Literal["torchrun", "slurm", "openmpi", "none"]

_JOB_PORTS = range(15000, 25000)
"""Below the ephemeral ports of Linux; a job's number picks one when the launcher gives none."""

_MAX_HOSTS = 100_000


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """Place of this process in its launch.

    Fields:
        rank, world: of all processes of the launch.
        local_rank: among those of this node; None when the launcher does not say.
        node: number of this node; None when the launcher does not say.
        job: names the launch, equal on all its ranks.
        master: host on which rank 0 runs; empty in a launch of one.
        port: where the launcher lets ranks meet; port_taken: the launcher itself listens there.
        hosts: nodes of the launch by name when the launcher tells, else empty.
    """

    rank: int = 0
    world: int = 1
    local_rank: int | None = 0
    node: int | None = None
    launcher: Launcher = "none"
    job: str = ""
    master: str = ""
    port: int = 0
    port_taken: bool = False
    hosts: tuple[str, ...] = ()

    @property
    def probes_for_host(self) -> bool:
        """Whether this rank looks at what all ranks of its node share; every rank does when local ranks are unknown."""
        return self.local_rank in (0, None)


def rank_context(environment: Mapping[str, str]) -> RankContext:
    """The place of a process with this environment.

    RANK and WORLD_SIZE win over Slurm's own variables, because scripts under srun set them for torch. A batch script
    itself is no rank: Slurm sets SLURM_STEP_NUM_TASKS only in what srun starts.

    Raises:
        UsageError: a variable is no number, a rank is outside its world, or nothing says where rank 0 is.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        context = _torchrun(environment)
    elif "SLURM_PROCID" in environment and "SLURM_STEP_NUM_TASKS" in environment:
        context = _slurm(environment)
    elif "OMPI_COMM_WORLD_RANK" in environment and "OMPI_COMM_WORLD_SIZE" in environment:
        context = _openmpi(environment)
    else:
        return RankContext()
    if context.rank >= context.world:
        raise UsageError(
            f"rank {context.rank} is outside a launch of {context.world} (from the variables of {context.launcher})",
            "ranks count from 0; check RANK and WORLD_SIZE, or unset them to look at this machine alone",
        )
    if context.world > 1 and not context.master:
        raise UsageError(
            f"rank {context.rank} of {context.world} does not know where rank 0 is: MASTER_ADDR is not set",
            "export MASTER_ADDR (host of rank 0) and MASTER_PORT on every rank, or use --rank-report and --merge",
        )
    return context


def expand_hosts(text: str) -> tuple[str, ...]:
    """Slurm's compressed host list as names: `gpu[01-03,7],login` gives gpu01 gpu02 gpu03 gpu7 login.

    A list that cannot be read (or names more than 100,000 hosts) gives nothing.
    """
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text.strip()):
        names = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            endings = [plain] if plain else _expand_ranges(ranges)
            if len(found) + len(names) * len(endings) > _MAX_HOSTS:
                return ()
            names = [name + ending for name in names for ending in endings]
        found += names
    return tuple(found)


def _expand_ranges(ranges: str) -> list[str]:
    numbers: list[str] = []
    for one in ranges.split(","):
        low, _, high = one.partition("-")
        if not low.isdecimal() or (high and not high.isdecimal()) or int(high or low) - int(low) > _MAX_HOSTS:
            return []
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high or low) + 1)]
    return numbers


def _torchrun(environment: Mapping[str, str]) -> RankContext:
    by_slurm = "SLURM_PROCID" in environment and "TORCHELASTIC_RUN_ID" not in environment
    world = _number(environment, "WORLD_SIZE", least=1)
    hosts = _slurm_hosts(environment)
    run = environment.get("TORCHELASTIC_RUN_ID") or _slurm_job(environment)
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return RankContext(
        rank=_number(environment, "RANK"),
        world=world,
        local_rank=_first_number(environment, "LOCAL_RANK", *(("SLURM_LOCALID",) if by_slurm else ())),
        node=_first_number(environment, "GROUP_RANK", "SLURM_NODEID"),
        launcher="torchrun",
        job=".".join(part for part in (run, restart) if part),
        master=environment.get("MASTER_ADDR", "") or (hosts[0] if hosts else ""),
        port=_port(environment),
        port_taken=environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true",
        hosts=hosts,
    )


def _slurm(environment: Mapping[str, str]) -> RankContext:
    hosts = _slurm_hosts(environment)
    return RankContext(
        rank=_number(environment, "SLURM_PROCID"),
        world=_number(environment, "SLURM_STEP_NUM_TASKS", least=1),
        local_rank=_first_number(environment, "SLURM_LOCALID"),
        node=_first_number(environment, "SLURM_NODEID"),
        launcher="slurm",
        job=_slurm_job(environment),
        master=environment.get("MASTER_ADDR", "") or (hosts[0] if hosts else ""),
        port=_port(environment),
        hosts=hosts,
    )


def _openmpi(environment: Mapping[str, str]) -> RankContext:
    return RankContext(
        rank=_number(environment, "OMPI_COMM_WORLD_RANK"),
        world=_number(environment, "OMPI_COMM_WORLD_SIZE", least=1),
        local_rank=_first_number(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
        launcher="openmpi",
        job=environment.get("PMIX_NAMESPACE", "") or environment.get("OMPI_MCA_ess_base_jobid", ""),
        master=environment.get("MASTER_ADDR", ""),
        port=_port(environment),
    )


def _slurm_job(environment: Mapping[str, str]) -> str:
    return ".".join(environment[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if name in environment)


def _slurm_hosts(environment: Mapping[str, str]) -> tuple[str, ...]:
    return expand_hosts(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "")


def _port(environment: Mapping[str, str]) -> int:
    """MASTER_PORT, else one that all ranks of a job compute alike."""
    if environment.get("MASTER_PORT"):
        port = _number(environment, "MASTER_PORT", least=1)
        if port > 65535:
            raise UsageError(f"MASTER_PORT={port} is no port", "give one between 1024 and 65535")
        return port
    seed = environment.get("SLURM_JOB_ID") or environment.get("PMIX_NAMESPACE") or ""
    return _JOB_PORTS[zlib.crc32(seed.encode()) % len(_JOB_PORTS)]


def _first_number(environment: Mapping[str, str], *names: str) -> int | None:
    return next((_number(environment, name) for name in names if environment.get(name)), None)


def _number(environment: Mapping[str, str], name: str, least: int = 0) -> int:
    text = environment[name].strip()
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise UsageError(f"{name}={environment[name]!r} is no whole number from {least} on", "let the launcher set it")
    return int(text)
