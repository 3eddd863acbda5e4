"""The text that a training run reads: the user's file, or a poem in the public domain that is shipped."""

from __future__ import annotations

import gzip
from importlib import resources
from pathlib import Path

from moe_dispatch.core.errors import WorkloadError

SHIPPED_TEXT = "paradise_lost"
"""Name of the shipped text; its source and licence stand beside it in `texts/README.md`."""


def read_text(path: str | None) -> tuple[bytes, str]:
    """(content, name) of the user's file (`.gz` is unpacked), or of the shipped text.

    Raises:
        WorkloadError: the file cannot be read.
    """
    if path is None:
        packed = resources.files("moe_dispatch.workload").joinpath("texts", f"{SHIPPED_TEXT}.txt.gz").read_bytes()
        return gzip.decompress(packed), SHIPPED_TEXT
    file = Path(path).expanduser()
    try:
        content = file.read_bytes()
        return (gzip.decompress(content) if file.suffix == ".gz" else content), str(file)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WorkloadError(f"--text {path} cannot be read: {reason}", "give a readable text file") from None
