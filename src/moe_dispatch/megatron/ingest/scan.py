"""Finds the lines that matter in a log of any size: memory stays flat, and most bytes only pass through `bytes.find`.

A line matters when it holds one of `ANCHORS`, a literal part of a text that some parser of this package reads; the
texts come from NVIDIA/Megatron-LM@d98e8a64:megatron/training/training.py, NVIDIA-NeMo/Megatron-Bridge@067f987d:
src/megatron/bridge/training/utils/train_utils.py and the sources named in `messages.yaml`. Blocks of lines without an
anchor of their own (argument dump, configuration summary) are read by a consumer that asks to follow.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from moe_dispatch.core.errors import UsageError

ANCHORS: tuple[bytes, ...] = (
    b"elapsed time per iteration",
    b"MODEL_TFLOP/s/GPU",
    b" iterations) memory (",
    b" arguments ----------",
    b"Configuration Summary (",
    b"Final configuration:",
    b"successfully loaded checkpoint",
    b" version ...",
    b"NCCL version ",
    b"arameters in billions",
    b"Error: ",
    b"Assertion `",
    b"alling back to alltoall",
    b"collective operation timeout",
    b"DeepEP timeout check",
    b" death signal",
    b"DUE TO TIME LIMIT",
    b"HYBRID_EP_",
    b"moe-dispatch-trace",
)
"""Each costs a pass over the file: long ones and rare letters are cheap, and a message that is only ever printed with
`Error: ` needs none of its own."""
CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 4 << 20
"""A longer line is cut: nothing that is read here comes near, and memory must not follow a file without line ends."""

_GZIP_MAGIC = b"\x1f\x8b"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(
    r" *(?P<task>\d+): "  # srun -l, the task number padded to a width; exactly one space follows
    r"|\[(?!rank)[A-Za-z_]*\d+\]:"  # torchrun --tee, a local rank: no space follows
    r"|\[rank(?P<rank>\d+)\]: "  # torch's exception hook
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?"  # kubectl, CRI
    r"|[\w./-]+ {1,20}\| (?= ?\S)"  # docker compose: name, padding, bar
)


class Consumer(Protocol):
    """What `scan` feeds."""

    @property
    def following(self) -> bool:
        """Whether the next lines are wanted whatever they hold."""

    def feed(self, text: str, rank: int | None) -> None:
        """One line without its end and without launcher prefixes, and the global rank that they named."""


def scan(path: Path, consumer: Consumer) -> None:
    """Feed the lines of one file that matter, in the order of the file; gzip is recognised by its first bytes.

    A damaged or cut gzip ends the file where it is damaged, as a cut log does.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for block in _blocks(_reader(file)):
                _scan_block(block, consumer)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"log {path} cannot be read: {reason}", "give files, or folders of files, you may read"
        ) from None


def clean(raw: bytes) -> Iterator[tuple[str, int | None]]:
    """The texts of one physical line: bytes that are no UTF-8 replaced, split where a progress bar returns."""
    for part in raw.split(b"\r"):
        if part:
            yield strip_prefixes(part.decode("utf-8", errors="replace"))


def strip_prefixes(text: str) -> tuple[str, int | None]:
    """Remove colours and what launchers put in front of a line, in any order and number; and the rank they name."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    start, rank = 0, None
    while match := _PREFIX.match(text, start):
        start = match.end()
        named = match["task"] or match["rank"]
        rank = int(named) if named and len(named) < 10 else rank
    return text[start:], rank


def _reader(file: BinaryIO) -> Callable[[], bytes]:
    head = file.read(2)
    file.seek(0)
    if head != _GZIP_MAGIC:
        return lambda: file.read(CHUNK_BYTES)
    packed = gzip.GzipFile(fileobj=file)

    def read() -> bytes:
        try:
            return packed.read1(CHUNK_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return b""

    return read


def _blocks(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Pieces of the file that end where a line ends (the last one where the file does)."""
    kept: list[bytes] = []
    size = 0
    while chunk := read():
        cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if cut == 0 and size + len(chunk) < MAX_LINE_BYTES:
            kept.append(chunk)
            size += len(chunk)
            continue
        cut = cut or len(chunk)
        yield b"".join((*kept, chunk[:cut]))
        kept, size = [chunk[cut:]], len(chunk) - cut
    if size:
        yield b"".join(kept)


def _scan_block(block: bytes, consumer: Consumer) -> None:
    hits = _line_starts(block)
    position, length = 0, len(block)
    for start in hits:
        while consumer.following and position < start:
            position = _feed(block, position, consumer)
        if position <= start:
            position = _feed(block, start, consumer)
    while consumer.following and position < length:
        position = _feed(block, position, consumer)


def _feed(block: bytes, start: int, consumer: Consumer) -> int:
    end = block.find(b"\n", start)
    if end < 0:
        end = len(block)
    for text, rank in clean(block[start:end]):
        consumer.feed(text, rank)
    return end + 1


def _line_starts(block: bytes) -> list[int]:
    """Offsets of the lines with an anchor, ascending."""
    starts: set[int] = set()
    for anchor in ANCHORS:
        at = block.find(anchor)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(anchor, end) if end >= 0 else -1
    return sorted(starts)
