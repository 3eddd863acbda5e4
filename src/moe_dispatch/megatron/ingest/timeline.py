"""Iterations of a run in the order in which they happened, its restarts, and the steady window.

The order comes from what the lines say (iteration number and time stamp), never from where they stand in a file: merged
logs of several ranks and files are not in order.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from moe_dispatch.core.errors import UsageError
from moe_dispatch.evidence.training import Window
from moe_dispatch.megatron.ingest.iterations import IterationLine

WARM_UP_LINES = 2
"""Megatron-LM does not reset its timer after iteration 1, so line 2 holds iteration 1 too
(NVIDIA/Megatron-LM@d98e8a64:megatron/training/training.py)."""
SLOW_START = 1.5
DEFAULT_RULE = (
    f"without the first {WARM_UP_LINES} iterations (or the first log interval) after each start, then without leading "
    f"ones above {SLOW_START:g} x the median of the later half; to the end, outliers kept"
)
_RANGE = re.compile(r"(\d{1,12})-(\d{1,12})")


@dataclass(frozen=True)
class Printed:
    """One iteration line and the attempt (0, and one more after each restart) that printed it."""

    attempt: int
    line: IterationLine


@dataclass(frozen=True)
class Timeline:
    """What was printed, and the window: of each iteration its last attempt that was no warm-up.

    Fields:
        printed: in order of time.
        counted: those in the window, one for each iteration, by iteration.
        log_interval: iterations between two lines.
    """

    printed: tuple[Printed, ...]
    counted: tuple[Printed, ...]
    window: Window
    planned: int | None
    log_interval: int
    restarts: int

    @property
    def complete(self) -> bool:
        """Whether every iteration line that the window needs was found."""
        return bool(self.counted) and self.window.needed == self.window.found

    @property
    def finished(self) -> bool:
        """Whether the window is complete and the last planned iteration was printed."""
        return self.complete and any(one.line.iteration == self.planned for one in self.printed)


@dataclass(frozen=True)
class WindowRequest:
    """Iterations A to B, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> WindowRequest:
        """Read `41-50`.

        Raises:
            UsageError: not two ascending iteration numbers.
        """
        match = _RANGE.fullmatch(text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"window {text!r} is not a range of iterations", "write it as 41-50, both ends included")
        return cls(int(match[1]), int(match[2]))


def timeline(
    lines: Iterable[IterationLine],
    *,
    starts: Iterable[int] = (),
    log_interval: int | None = None,
    window: WindowRequest | None = None,
) -> Timeline:
    """Order the lines and choose the window.

    Args:
        lines: each printed line once, in any order.
        starts: iterations at which training began or went on, where the log says.
        log_interval: where the configuration says; else the most frequent distance of two lines.
        window: explicit; None applies `DEFAULT_RULE`.
    """
    printed = _attempts(lines)
    planned = max((one.line.planned for one in printed), default=None)
    interval = log_interval or _interval(printed)
    latest = {one.line.iteration: one for one in printed}
    steady = _steady(printed, sorted({0, *starts}), interval)
    kept = {one.line.iteration: one for one in printed if one in steady and one.line.complete}
    warming = {one.line.iteration for one in printed if one.line.complete} - kept.keys()
    if window is not None:
        warming = set()
        kept = {
            number: one for number, one in latest.items() if window.first <= number <= window.last and one.line.complete
        }
        first, last, rule = window.first, window.last, f"iterations {window.first}-{window.last}"
    else:
        first, last, rule = min(kept, default=0), planned or 0, DEFAULT_RULE
    expected = _expected(first, last, interval, latest) - warming if kept or window else set()
    counted = tuple(kept[number] for number in sorted(kept) if first <= number <= last)
    chosen = Window(
        rule=rule,
        first=counted[0].line.iteration if counted else None,
        last=counted[-1].line.iteration if counted else None,
        needed=len(expected),
        found=len(expected & kept.keys()),
    )
    restarts = printed[-1].attempt if printed else 0
    return Timeline(tuple(printed), counted, chosen, planned, interval, restarts)


def _attempts(lines: Iterable[IterationLine]) -> list[Printed]:
    """In order of time stamps; a number that does not grow starts a new attempt.

    A line without a stamp (old releases, or cut in front) is a copy of a stamped one if it agrees with it; else it
    stands for its iteration in the last attempt that lacks it.
    """
    stamped: list[IterationLine] = []
    bare: list[IterationLine] = []
    for line in lines:
        (bare if line.stamp is None else stamped).append(line)
    stamped.sort(key=lambda line: (line.stamp, line.iteration))
    groups: list[dict[int, IterationLine]] = [{}]
    highest = -1
    for line in stamped:
        if line.iteration <= highest:
            groups.append({})
        groups[-1][line.iteration] = line
        highest = line.iteration
    for line in bare:
        _place(line, groups)
    return [
        Printed(attempt, group[number])
        for attempt, group in enumerate(group for group in groups if group)
        for number in sorted(group)
    ]


def _place(line: IterationLine, groups: list[dict[int, IterationLine]]) -> None:
    for group in groups:
        known = group.get(line.iteration)
        if known is not None and known.agrees(line):
            if line.known > known.known:
                group[line.iteration] = line
            return
    free = next((group for group in reversed(groups) if line.iteration not in group), None)
    if free is None:
        groups.append({line.iteration: line})
    else:
        free[line.iteration] = line


def _interval(printed: Sequence[Printed]) -> int:
    """Most frequent distance of two lines of one attempt; the smallest of those as frequent."""
    distances = Counter(
        later.line.iteration - one.line.iteration for one, later in pairwise(printed) if one.attempt == later.attempt
    )
    return min(distances, key=lambda distance: (-distances[distance], distance), default=1)


def _steady(printed: Sequence[Printed], starts: Sequence[int], interval: int) -> set[Printed]:
    """Iterations that are not warm-up, attempt by attempt."""
    steady: set[Printed] = set()
    for attempt in {one.attempt for one in printed}:
        own = [one for one in printed if one.attempt == attempt and one.line.elapsed_ms is not None]
        if not own:
            continue
        first = own[0].line.iteration
        begun = [start for start in starts if start < first] if attempt == 0 else [first - interval]
        rest = [one for one in own if one.line.iteration > max(begun, default=0) + max(WARM_UP_LINES, interval)]
        steady.update(rest[_leading_slow(rest) :])
    return steady


def _leading_slow(rest: Sequence[Printed]) -> int:
    """How many iterations at the front are still warming up; at most half of them."""
    times = [one.line.elapsed_ms for one in rest if one.line.elapsed_ms is not None]
    if len(times) < 2:
        return 0
    usual = statistics.median(times[len(times) // 2 :])
    return next((at for at, time in enumerate(times[: len(times) // 2]) if time <= SLOW_START * usual), len(times) // 2)


def _expected(first: int, last: int, interval: int, latest: dict[int, Printed]) -> set[int]:
    """Iterations from `first` to `last` that the run prints: multiples of the interval, and what it printed besides."""
    if last - first > 10_000_000:
        return set(latest)
    multiples = range(-(-first // interval) * interval, last + 1, interval)
    return {*multiples, *(number for number in latest if first <= number <= last)}
