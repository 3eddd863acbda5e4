"""The folder store: atomic, tolerant, honest about a full or read-only disk (real ones: tiny tmpfs mounts)."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evidence_records import record

from moe_dispatch.core.errors import StoreError, UsageError
from moe_dispatch.core.finding import Severity
from moe_dispatch.evidence.record import SCHEMA_VERSION
from moe_dispatch.evidence.store import Store

MIB = 1024 * 1024


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a tmpfs with given options; unmounted afterwards."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a tiny file system needs root")
    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_round_trip_with_files(tmp_path: Path) -> None:
    store, source = Store(tmp_path / "deep" / "store"), tmp_path / "launch.log"
    source.write_bytes(b"from a file")
    one = record()
    folder = store.write(one, {"a.log": b"raw", "launch.log": source})
    assert store.read(one.run_id) == one
    assert sorted(path.name for path in folder.iterdir()) == ["a.log", "launch.log", "record.json"]
    assert (folder / "launch.log").read_bytes() == b"from a file"


def test_reading_a_store_that_is_not_there_yet(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert store.read_all() == []
    assert not store.path.exists()
    with pytest.raises(StoreError, match="holds no run"):
        store.read("nope")


def test_records_and_sessions_come_in_time_order(tmp_path: Path) -> None:
    made = [record(session=name) for name in ("b", "a", "b")]
    store = Store(tmp_path)
    for one in reversed(made):
        store.write(one)
    assert store.read_all() == made
    assert store.sessions() == ["b", "a"]


def test_a_run_id_is_never_overwritten(tmp_path: Path) -> None:
    store, one = Store(tmp_path), record()
    store.write(one)
    with pytest.raises(StoreError, match="already in store"):
        store.write(one.model_copy(update={"launch": 3}))
    assert store.read_all() == [one]
    assert [path.name for path in tmp_path.iterdir()] == [one.run_id]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "record.json"])
def test_only_plain_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        Store(tmp_path).write(record(), {name: b""})
    assert list(tmp_path.iterdir()) == []


def test_damage_becomes_findings_and_the_rest_stays_readable(tmp_path: Path) -> None:
    store, good, cut, newer, wrong = Store(tmp_path), record(), record(), record(), record()
    for one in (good, cut, newer, wrong):
        store.write(one)
    text = (tmp_path / cut.run_id / "record.json").read_text()
    (tmp_path / cut.run_id / "record.json").write_text(text[: len(text) // 2])
    (tmp_path / newer.run_id / "record.json").write_text(
        text.replace('"schema_version": 1', f'"schema_version": {SCHEMA_VERSION + 1}, "added": 1')
    )
    (tmp_path / wrong.run_id / "record.json").write_text(text.replace('"status": "ok"', '"status": "crashed"'))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "record.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / ".tmp-left-over").mkdir()
    contents = store.scan()
    assert contents.records == (good,)
    by_place = {finding.id: finding for finding in contents.findings}
    assert set(by_place) == {
        "store-half-written",
        "store-newer-schema",
        "store-invalid-record",
        "store-foreign",
        "store-unfinished-write",
    }
    assert len(contents.findings) == 6
    assert by_place["store-unfinished-write"].severity is Severity.INFO
    assert f"reads up to {SCHEMA_VERSION}" in by_place["store-newer-schema"].message
    with pytest.raises(StoreError, match="schema version 2"):
        store.read(newer.run_id)


def test_merging_is_copying_folders(tmp_path: Path) -> None:
    left, right = Store(tmp_path / "l"), Store(tmp_path / "r")
    ours, theirs = record(), record()
    left.write(ours)
    right.write(theirs)
    shutil.copytree(right.path, left.path, dirs_exist_ok=True)
    shutil.copytree(right.path / theirs.run_id, left.path / "a second copy")
    assert left.scan().records == (ours, theirs)
    assert left.scan().findings == ()
    shutil.copytree(right.path, left.path / "nested")
    assert [finding.id for finding in left.scan().findings] == ["store-nested"]


def test_two_different_records_under_one_id_are_reported(tmp_path: Path) -> None:
    store, one = Store(tmp_path), record()
    folder = store.write(one)
    shutil.copytree(folder, tmp_path / "z-edited")
    edited = one.model_copy(update={"launch": 9})
    (tmp_path / "z-edited" / "record.json").write_text(edited.model_dump_json())
    contents = store.scan()
    assert contents.records == (one,)
    assert [finding.id for finding in contents.findings] == ["store-duplicate-run"]


def test_a_full_disk_leaves_nothing_and_keeps_what_was_there(tmpfs: Callable[..., Path]) -> None:
    store, first = Store(tmpfs("size=512k") / "store"), record()
    store.check_writable()
    store.write(first, {"small.log": b"x"})
    with pytest.raises(StoreError, match="No space left on device") as caught:
        store.write(record(), {"big.log": b"x" * MIB})
    assert "free space" in caught.value.fix
    assert [path.name for path in store.path.iterdir()] == [first.run_id]
    assert store.scan().records == (first,)
    store.write(record())


def test_check_writable_sees_a_disk_that_is_too_small(tmpfs: Callable[..., Path]) -> None:
    store = Store(tmpfs("size=64k") / "store")
    with pytest.raises(StoreError, match="No space left"):
        store.check_writable()
    assert list(store.path.iterdir()) == []


def test_a_read_only_store(tmpfs: Callable[..., Path]) -> None:
    disk = tmpfs("size=512k")
    store, one = Store(disk / "store"), record()
    store.write(one)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for attempt in (store.check_writable, lambda: store.write(record())):
        with pytest.raises(StoreError, match="Read-only file system") as caught:
            attempt()
        assert "read-only" in caught.value.fix
    assert store.read_all() == [one]


def test_a_file_where_the_store_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file")
    for attempt in (store.check_writable, lambda: store.write(record()), store.scan):
        with pytest.raises(StoreError, match="a file stands where"):
            attempt()


def _write_many(folder: str, count: int) -> None:
    for launch in range(count):
        Store(folder).write(record(session="shared", launch=launch), {"log": b"x" * 1000})


def test_two_writers_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(str(tmp_path), 15)) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        contents = Store(tmp_path).scan()
        assert {finding.id for finding in contents.findings} <= {"store-unfinished-write"}
        assert len(contents.records) >= seen
        seen = len(contents.records)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    contents = Store(tmp_path).scan()
    assert len(contents.records) == 30
    assert contents.findings == ()
