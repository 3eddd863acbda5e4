"""A Slurm of one node with eight pretended GPUs, started for a test and ended after it; needs root and Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo")
_GPUS = 8

_CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={control}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The environment for `sbatch` and `srun`; skips with its reason where Slurm cannot be started."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'Slurm'}")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    env = kept | {"PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
    _configure(folder)
    started: list[Path] = []
    try:
        for command, pid in (
            (_munged(folder), folder / "munge/pid"),
            (["slurmctld"], folder / "slurmctld.pid"),
            (["slurmd"], folder / "slurmd.pid"),
        ):
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{command[0]} does not start here: {done.stderr.strip().splitlines()[-1:]}")
            started.append(pid)
        _wait_until_idle(env, folder)
        yield env
    finally:
        for pid in reversed(started):
            if pid.is_file():
                os.kill(int(pid.read_text()), signal.SIGTERM)


def _configure(folder: Path) -> None:
    host = socket.gethostname().partition(".")[0]
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(mode=0o700)
    (folder / "munge/key").write_bytes(os.urandom(1024))
    (folder / "munge/key").chmod(0o600)
    for index in range(_GPUS):
        os.mknod(folder / f"gpu{index}", 0o666 | 0o020000, os.makedev(1, 3))
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-{_GPUS - 1}]\n")
    control, daemon = _free_port(), _free_port()
    text = _CONFIGURATION.format(
        host=host, folder=folder, control=control, daemon=daemon, cores=os.cpu_count(), gpus=_GPUS
    )
    (folder / "slurm.conf").write_text(text)


def _munged(folder: Path) -> list[str]:
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    return ["munged", "--force", *(f"--{option}={folder}/munge/{name}" for option, name in files.items())]


def _wait_until_idle(env: dict[str, str], folder: Path) -> None:
    for _ in range(100):
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True, check=False)
        if done.stdout.strip() == "idle":
            return
        time.sleep(0.1)
    pytest.skip(f"Slurm's node is not idle: {(folder / 'slurmctld.log').read_text()[-300:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
