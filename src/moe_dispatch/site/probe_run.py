"""Running a probing tool under a time limit, and reading small files: neither ever raises."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_KILLED_S = 1.0


def run_limited(command: Sequence[str], timeout_s: float) -> str | None:
    """What a tool prints; None if it is absent, fails or does not end in time.

    With a broken driver not even a kill ends a tool that is inside it, so this waits for none and reads no pipe.
    """
    try:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                returncode = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_S)
            output.seek(0)
            return output.read().decode("utf-8", "replace") if returncode == 0 else None
    except (OSError, ValueError):
        return None


def read(path: Path) -> str:
    """A small file without surrounding blanks; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def children(folder: Path) -> list[Path]:
    """Entries of a folder by name; none when it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def real(path: Path) -> str:
    """Where a link leads, as text; the path itself when it is none."""
    return os.path.realpath(path)


def number(text: str) -> int | None:
    """A plain non-negative number, None for anything else (`N/A`, `-1`, empty)."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else None
