"""Memory lines: Megatron-LM prints MiB under the name MB, Megatron-Bridge decimal GB.

Formats: NVIDIA/Megatron-LM@d98e8a64:megatron/training/utils/common_utils.py (report_memory) and
NVIDIA-NeMo/Megatron-Bridge@067f987d:src/megatron/bridge/training/utils/train_utils.py. Both are printed after
iterations 1 and 2 only; the first one precedes the optimizer state.
"""

from __future__ import annotations

import re

from moe_dispatch.evidence.training import RankMemory

_LINE = re.compile(r"\[Rank (\d{1,9})\] \(after (\d{1,12}) iterations\) memory \((MB|GB)\) \|(.*)")
_VALUE = {"MB": re.compile(r"\d+\.\d\d"), "GB": re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")}
_BYTES = {"MB": 1 << 20, "GB": 10**9}
_NAMES = {
    "MB": {
        "allocated": "allocated_bytes",
        "max allocated": "max_allocated_bytes",
        "reserved": "reserved_bytes",
        "max reserved": "max_reserved_bytes",
    },
    "GB": {
        "mem-allocated-gigabytes": "allocated_bytes",
        "mem-max-allocated-gigabytes": "max_allocated_bytes",
        "mem-reserved-gigabytes": "reserved_bytes",
        "mem-max-reserved-gigabytes": "max_reserved_bytes",
    },
}


def memory_line(text: str) -> RankMemory | None:
    """The values of one memory line in bytes, or None.

    The last field of a line has no closing bar: Megatron-LM's counts only with its two decimals, Bridge's is a counter
    that is not read.
    """
    match = _LINE.search(text)
    if match is None:
        return None
    unit = match[3]
    values: dict[str, int] = {}
    for segment in match[4].split("|"):
        name, found, value = segment.partition(": ")
        field = _NAMES[unit].get(name.strip()) if found else None
        value = value.strip()
        if field is not None and _VALUE[unit].fullmatch(value):
            values.setdefault(field, round(float(value) * _BYTES[unit]))
    return (
        RankMemory(rank=int(match[1]), after_iteration=int(match[2]), printed_unit=unit, **values) if values else None
    )
