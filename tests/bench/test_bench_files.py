"""Results and positions are readable whatever moment a process dies at."""

from __future__ import annotations

from pathlib import Path

from moe_dispatch.bench.events import Finished, Fitted, ResultsReader, ResultsWriter
from moe_dispatch.bench.progress import ProgressWriter, read_errors, read_positions


def test_reader_follows_and_leaves_a_half_written_line_for_later(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    reader = ResultsReader(path)
    assert reader.new_events() == []
    writer = ResultsWriter(path)
    writer.write(Fitted(tokens=256))
    assert reader.new_events() == [Fitted(tokens=256)]
    whole = Finished().model_dump_json().encode() + b"\n"
    with path.open("ab") as file:
        file.write(whole[:9])
    assert reader.new_events() == []
    with path.open("ab") as file:
        file.write(whole[9:])
    assert reader.new_events() == [Finished()]
    assert reader.new_events() == []
    writer.close()


def test_reader_skips_foreign_lines(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"kind": "from the future"}\n\xff\xfe\n' + Finished().model_dump_json().encode() + b"\n")
    assert ResultsReader(path).new_events() == [Finished()]


def test_positions_are_read_by_rank_and_torn_files_skipped(tmp_path: Path) -> None:
    for rank in (1, 0):
        ProgressWriter(tmp_path, rank, "host").at("measure", 1, "zipf:1", 5 + rank)
    (tmp_path / "rank2.json").write_text('{"rank": 2, "ho', encoding="utf-8")
    positions = read_positions(tmp_path)
    assert [(p.rank, p.phase, p.arm, p.iteration) for p in positions] == [(0, "measure", 1, 5), (1, "measure", 1, 6)]


def test_error_names_the_place_and_can_be_taken_back(tmp_path: Path) -> None:
    progress = ProgressWriter(tmp_path, 3, "host")
    progress.at("build", 2)
    progress.fail("unsupported", "no fp8", "use bf16")
    (error,) = read_errors(tmp_path)
    assert (error.rank, error.arm, error.phase, error.message, error.fix) == (3, 2, "phase build", "no fp8", "use bf16")
    progress.forgive()
    assert read_errors(tmp_path) == []
