"""`doctor` on all ranks of a launch: real processes on this host, compared by rank 0, one exit code for all."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest
from doctor_ranks import QUICK, Finished, finished, free_port, start

WITHIN_S = 2.0
"""Limit for finding rank 0 in tests where it is meant not to be found."""

ARRIVE = ("--timeout", "4")
"""For rank 0 where a rank is meant to be missing; the others start first and are more patient."""

PATIENT = ("--timeout", "30")
"""For launches whose ranks all come: loaded machines start slowly."""


def run_all(
    world: int, *arguments: str, odd: dict[str, str] | None = None, odd_ranks: range = range(0)
) -> list[Finished]:
    port = free_port()
    ranks = [
        start(rank, world, port, *QUICK, *arguments, settings=odd if rank in odd_ranks else None)
        for rank in range(world)
    ]
    with finished(ranks) as ended:
        return list(ended)


def test_ranks_that_agree_all_exit_0_and_only_rank_0_prints() -> None:
    ended = run_all(8, "--json", *PATIENT)
    assert [rank.code for rank in ended] == [0] * 8
    decision = ended[0].document["decision"]
    assert (decision["world"], decision["ranks"], decision["hosts"]) == (8, 8, [socket.gethostname()])
    assert decision["differences"] == []
    assert all(rank.out + rank.err == "" for rank in ended[1:])


def test_a_setting_on_the_leader_only_is_one_error_on_every_rank() -> None:
    """awslabs/awsome-distributed-ai#1242: MOE_DISPATCHER reached the leader's ranks only."""
    ended = run_all(4, "--json", *PATIENT, odd={"MOE_DISPATCHER": "flex"}, odd_ranks=range(2))
    assert [rank.code for rank in ended] == [1] * 4
    finding = ended[0].finding("ranks-differ")
    assert finding["severity"] == "error"
    assert "MOE_DISPATCHER: flex on" in finding["message"]
    assert "(rank 0-1); not set on" in finding["message"]
    (difference,) = ended[0].document["decision"]["differences"]
    assert [(holder["value"], holder["ranks"]) for holder in difference["holders"]] == [
        ("flex", [0, 1]),
        (None, [2, 3]),
    ]


def test_a_device_of_its_own_for_each_rank_is_no_difference() -> None:
    port = free_port()
    ranks = [
        start(rank, 2, port, *QUICK, "--json", *PATIENT, settings={"CUDA_VISIBLE_DEVICES": str(rank)})
        for rank in range(2)
    ]
    with finished(ranks) as ended:
        assert [rank.code for rank in ended] == [0, 0]
        assert ended[0].document["decision"]["differences"] == []


def test_another_interface_is_a_warning_and_stops_nothing() -> None:
    ended = run_all(2, "--json", *PATIENT, odd={"NCCL_SOCKET_IFNAME": "eth7"}, odd_ranks=range(1, 2))
    assert [rank.code for rank in ended] == [0, 0]
    assert ended[0].finding("ranks-differ-harmlessly")["severity"] == "warning"


def test_a_rank_that_never_starts_is_named_and_not_waited_for() -> None:
    port = free_port()
    others = [start(rank, 4, port, *QUICK, *PATIENT) for rank in (1, 3)]
    with finished([start(0, 4, port, *QUICK, "--json", *ARRIVE), *others]) as ended:
        assert [rank.code for rank in ended] == [1, 1, 1]
        assert ended[0].finding("ranks-missing")["message"].startswith("1 of 4 ranks did not report: 2 ")


def test_ranks_without_rank_0_say_so_and_end() -> None:
    port = free_port()
    with finished([start(1, 2, port, *QUICK, "--timeout", str(WITHIN_S))]) as (ended,):
        assert ended.code == 1
        assert f"did not find rank 0 at 127.0.0.1:{port}-{port + 3} within 2 s" in ended.err
        assert "fix: start all ranks together" in ended.err


def test_a_port_in_use_is_passed_over() -> None:
    port = free_port()
    with socket.create_server(("", port)):  # accepts and never speaks: another program's port
        ranks = [start(rank, 2, port, *QUICK, "--json", *PATIENT) for rank in range(2)]
        with finished(ranks) as ended:
            assert [rank.code for rank in ended] == [0, 0]


def test_a_given_port_in_use_is_refused_with_the_way_out() -> None:
    port = free_port()
    arguments = (*QUICK, "--port", str(port), "--timeout", str(WITHIN_S))
    with socket.create_server(("", port)), finished([start(rank, 2, port, *arguments) for rank in range(2)]) as ended:
        assert [rank.code for rank in ended] == [1, 1]
        assert f"port {port} is not available (in use)" in ended[0].err
        assert "--port" in ended[0].err


def test_two_processes_with_one_rank_number_are_an_error() -> None:
    port = free_port()
    twins = [start(1, 3, port, *QUICK, *PATIENT) for _ in range(2)]
    with finished([start(0, 3, port, *QUICK, "--json", *ARRIVE), *twins]) as ended:
        assert [rank.code for rank in ended] == [1, 1, 1]
        assert "rank 1" in ended[0].finding("rank-number-taken-twice")["message"]


def test_a_rank_that_is_killed_after_it_arrived_is_not_waited_for() -> None:
    port = free_port()
    lost = start(1, 3, port, *QUICK, *PATIENT)
    leader = start(0, 3, port, *QUICK, "--json", *ARRIVE)
    while not _connected(lost.pid, port):
        assert leader.poll() is None, "rank 1 never arrived"
        time.sleep(0.05)
    lost.kill()
    lost.wait()
    with finished([leader]) as (ended,):
        assert ended.code == 1
        assert "rank 1 arrived and went away" in ended.finding("ranks-lost")["message"]


def test_required_backends_are_one_line_each_in_a_job_log() -> None:
    port = free_port()
    ranks = [start(rank, 2, port, "--require", "hybridep,ncclep", *PATIENT) for rank in range(2)]
    with finished(ranks) as ended:
        assert [rank.code for rank in ended] == [1, 1]
        lines = ended[0].out.splitlines()
        assert [line.split(":")[1].split()[0] for line in lines] == ["hybridep", "ncclep"]
        assert all("not-installed" in line and "fix: " in line for line in lines)
        assert ended[1].out == ""


def test_reports_in_files_give_the_same_decision_without_network(tmp_path: Path) -> None:
    folder = f"{tmp_path / 'reports'}/"
    settings = {0: {"MOE_DISPATCHER": "flex"}}
    ranks = [start(rank, 3, 1, *QUICK, "--rank-report", folder, settings=settings.get(rank)) for rank in range(2)]
    with finished(ranks) as ended:
        assert [rank.code for rank in ended] == [0, 0]
    written = sorted(path.name for path in Path(folder).iterdir())
    assert written == ["rank-00000.json", "rank-00001.json"]
    merged = start(0, 1, 1, "--alone", "--merge", folder, "--json")
    with finished([merged]) as (ended_merge,):
        assert ended_merge.code == 1
        assert "1 of 3 ranks did not report: 2 " in ended_merge.finding("ranks-missing")["message"]
        assert "MOE_DISPATCHER: flex" in ended_merge.finding("ranks-differ")["message"]


def test_a_damaged_report_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "rank-00000.json").write_text(json.dumps({"schema_version": 1, "rank": "x"}))
    with finished([start(0, 1, 1, "--merge", str(tmp_path))]) as (ended,):
        assert ended.code == 2
        assert "rank-00000.json is a damaged rank report: rank:" in ended.err


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_secret_never_leaves_a_rank(tmp_path: Path) -> None:
    settings = {"NCCL_AUTH_TOKEN": "do-not-tell", "UCX_PROXY": "http://me:do-not-tell@proxy"}
    with finished([start(0, 1, 1, *QUICK, "--rank-report", str(tmp_path / "one.json"), settings=settings)]) as (ended,):
        assert ended.code == 0
    text = (tmp_path / "one.json").read_text()
    assert "UCX_PROXY" in text
    assert "do-not-tell" not in text


def _connected(pid: int, port: int) -> bool:
    """Whether a process holds a connection to one of the ports that rank 0 tries."""
    established = "01"
    ports = {f"{number:04X}" for number in range(port, port + 4)}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == established and fields[2].rpartition(":")[2] in ports:
                return True
    return False
