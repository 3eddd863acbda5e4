"""Folder store of RunRecords: one folder for each record, written under a temporary name and renamed.

    STORE/<run_id>/record.json      the record
    STORE/<run_id>/<other files>    raw logs that belong to it

A reader never sees half a record, several writers on one shared file system do not meet (run ids are unique), and
stores are merged by copying run folders. What cannot be read is reported, never fatal: a store outlives the machines
that wrote it.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moe_dispatch.core.errors import StoreError, UsageError
from moe_dispatch.core.finding import Finding, Severity
from moe_dispatch.evidence.record import SCHEMA_VERSION, Model, RunRecord

RECORD_FILE = "record.json"
TEMPORARY_PREFIX = ".tmp-"
PROBE_BYTES = 256 * 1024
"""What `check_writable` needs: about one record of a long run with its log."""

_FIXES: Mapping[int, str] = {
    errno.ENOSPC: "free space on that file system or choose another store directory; records written so far are intact",
    errno.EDQUOT: "your quota is used up: free space or choose another store directory; earlier records are intact",
    errno.EROFS: "the file system is mounted read-only: choose a store directory that can be written",
    errno.EACCES: "you may not write there: choose a store directory that you own",
    errno.EPERM: "you may not write there: choose a store directory that you own",
    errno.ENOTDIR: "a file stands where the store directory should be: move it or choose another directory",
    errno.EEXIST: "a file stands where the store directory should be: move it or choose another directory",
    errno.ENAMETOOLONG: "choose a shorter store path",
}


class StoreContents(Model):
    """Everything a store holds.

    Fields:
        records: readable records, sorted by run id (time), each once.
        findings: folders and files that could not be read or do not belong there.
    """

    records: tuple[RunRecord, ...]
    findings: tuple[Finding, ...]


class Store:
    """A store at `path`; nothing is created before the first write or `check_writable`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def check_writable(self) -> None:
        """Create the store directory and prove that a record of usual size can be written.

        Raises:
            StoreError: full, read-only or forbidden; says which, and what to do.
        """
        probe = self.path / f"{TEMPORARY_PREFIX}probe-{secrets.token_hex(4)}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _write_file(probe, b"\0" * PROBE_BYTES)
        except OSError as error:
            raise self._refusal("the store cannot be written", error) from error
        finally:
            _remove(probe)

    def write(self, record: RunRecord, files: Mapping[str, bytes | Path] | None = None) -> Path:
        """Write one record and its files, all or nothing, on disk when this returns.

        Args:
            files: plain names (no folders) to contents, or to files that are copied.

        Returns:
            The run's folder.

        Raises:
            StoreError: the store is full or cannot be written, or the run id is taken; nothing is left behind.
            UsageError: a file name that is not plain.
        """
        names = _checked_names(record.run_id, files or {})
        target = self.path / record.run_id
        temporary = self.path / f"{TEMPORARY_PREFIX}{record.run_id}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            for name, content in names.items():
                _write_file(temporary / name, content if isinstance(content, bytes) else content.read_bytes())
            _write_file(temporary / RECORD_FILE, (record.model_dump_json(indent=1) + "\n").encode())
            _sync_directory(temporary)
            temporary.rename(target)
            _sync_directory(self.path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and target.exists():
                raise StoreError(
                    f"run {record.run_id} is already in store {self.path}",
                    "records are never overwritten; use a new run id",
                ) from error
            raise self._refusal(f"run {record.run_id} was not stored", error) from error
        finally:
            _remove(temporary)
        return target

    def read(self, run_id: str) -> RunRecord:
        """One record.

        Raises:
            StoreError: it is not there, is damaged, or was written by a newer release.
        """
        path = self.path / run_id / RECORD_FILE
        if Path(run_id).name != run_id or not path.is_file():
            raise StoreError(f"store {self.path} holds no run {run_id!r}", "list the store to see its runs")
        loaded = load_record(path)
        if isinstance(loaded, Finding):
            raise StoreError(loaded.message, "; ".join(loaded.advice))
        return loaded

    def read_all(self) -> list[RunRecord]:
        """All readable records, sorted by run id; `scan` also says what could not be read."""
        return list(self.scan().records)

    def sessions(self) -> list[str]:
        """Names of all sessions, oldest first."""
        return list(dict.fromkeys(record.session for record in self.scan().records))

    def scan(self) -> StoreContents:
        """Read everything; a store that does not exist yet is empty.

        Raises:
            StoreError: the path is not a directory or may not be listed.
        """
        try:
            entries = sorted(self.path.iterdir())
        except FileNotFoundError:
            return StoreContents(records=(), findings=())
        except OSError as error:
            raise self._refusal("the store cannot be read", error) from error
        records: dict[str, RunRecord] = {}
        findings: list[Finding] = []
        for entry in entries:
            loaded = _load_entry(entry)
            if isinstance(loaded, Finding):
                findings.append(loaded)
            elif loaded.run_id in records:
                findings += _duplicate(entry, loaded, records[loaded.run_id])
            else:
                records[loaded.run_id] = loaded
        return StoreContents(records=tuple(records[run_id] for run_id in sorted(records)), findings=tuple(findings))

    def _refusal(self, what: str, error: OSError) -> StoreError:
        cause = os.strerror(error.errno) if error.errno else str(error)
        fix = _FIXES.get(error.errno or 0, "check the directory, or choose another store directory")
        return StoreError(f"{what}: {self.path}: {cause}", fix)


def load_record(path: Path) -> RunRecord | Finding:
    """Read one record file; trouble comes back as a Finding."""
    document = _load_json(path)
    return document if isinstance(document, Finding) else _validated(document, str(path))


def load_records(path: Path) -> list[RunRecord | Finding]:
    """Read a file that holds one record, a list of records, or an object with a list `records` (`ingest --json`)."""
    document = _load_json(path)
    if isinstance(document, Finding):
        return [document]
    members = document.get("records") if isinstance(document, dict) and "run_id" not in document else document
    if not isinstance(members, list):
        return [_validated(document, str(path))]
    return [_validated(member, f"{path}, record {number}") for number, member in enumerate(members, 1)]


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        return _finding("store-unreadable", f"{path} cannot be read: {error.strerror}", "check permissions")
    except (ValueError, RecursionError):
        return _finding("store-half-written", f"{path} is not complete JSON", "delete its folder; the run is lost")


def _validated(document: Any, path: str) -> RunRecord | Finding:
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return _finding(
            "store-newer-schema",
            f"{path} has schema version {version}; this release reads up to {SCHEMA_VERSION}",
            "read it with the moe-dispatch release that wrote it, or upgrade this one",
        )
    try:
        return RunRecord.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "record"
        problem = f"{path} is not a valid record ({where}: {first['msg']})"
        return _finding("store-invalid-record", problem, "leave it out, or write it again with this release")


def _load_entry(entry: Path) -> RunRecord | Finding:
    if entry.name.startswith(TEMPORARY_PREFIX):
        return Finding(
            id="store-unfinished-write",
            severity=Severity.INFO,
            message=f"{entry} was not finished by its writer",
            why="a writer is at work right now, or was killed before it renamed the folder",
            advice=("delete it once no run uses this store",),
            source="store",
        )
    if (entry / RECORD_FILE).is_file():
        return load_record(entry / RECORD_FILE)
    if entry.is_dir() and any(entry.glob(f"*/{RECORD_FILE}")):
        return _finding("store-nested", f"{entry} is a store inside a store", "copy its run folders one level up")
    return _finding("store-foreign", f"{entry} is not a run folder (no {RECORD_FILE})", "move it out of the store")


def _duplicate(entry: Path, record: RunRecord, first: RunRecord) -> list[Finding]:
    """Nothing for a plain copy, which merging may leave; a warning for two different records under one id."""
    if record == first:
        return []
    problem = f"{entry} holds another record with the run id {record.run_id}; the first one is used"
    return [_finding("store-duplicate-run", problem, "delete the one that was edited")]


def _finding(kind: str, message: str, advice: str) -> Finding:
    return Finding(
        id=kind,
        severity=Severity.WARNING,
        message=message,
        why="it is left out of every comparison",
        advice=(advice,),
        source="store",
    )


def _checked_names(run_id: str, files: Mapping[str, bytes | Path]) -> Mapping[str, bytes | Path]:
    for name in (run_id, *files):
        if not name or Path(name).name != name or name.startswith(".") or "\0" in name:
            raise UsageError(f"{name!r} is no plain file name", "use a name without folders and without a leading dot")
    if RECORD_FILE in files:
        raise UsageError(f"{RECORD_FILE!r} is the record itself", "give the file another name")
    return files


def _write_file(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Make renames durable; some network file systems cannot sync a directory, and need not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Best effort: the reason why cleaning up is needed may also be why it fails."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return
