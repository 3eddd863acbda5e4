"""Run ids are unique and sort by time, also across threads and when the clock does not move."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest

from moe_dispatch.evidence import ids
from moe_dispatch.evidence.ids import new_run_id, new_session_id


def test_sorted_and_unique() -> None:
    made = [new_run_id() for _ in range(2000)]
    assert made == sorted(made)
    assert len({name.split("-")[0] for name in made}) == 2000


def test_a_clock_that_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_run_id()

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(2001, 1, 1, tzinfo=timezone.utc)

    monkeypatch.setattr(ids, "datetime", Stopped)
    assert before < new_run_id() < new_run_id()


def test_threads_do_not_meet() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_run_id(), range(1000)))
    assert len(set(made)) == 1000


def test_shapes_are_plain_folder_names() -> None:
    assert re.fullmatch(r"\d{8}T\d{12}-[0-9a-f]{10}", new_run_id())
    assert re.fullmatch(r"\d{8}T\d{6}-[0-9a-f]{8}", new_session_id())
