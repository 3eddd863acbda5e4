"""Names of records and groups of launches: unique without a coordinator, and sorted by the time they were made.

UTC microseconds come first, so names sort by time; 40 random bits follow, so that two writers on a shared file system
do not meet (a birthday collision needs about a million names made in the same microsecond).
"""

from __future__ import annotations

import secrets
import threading
from datetime import datetime, timedelta, timezone

_LOCK = threading.Lock()
_last = datetime.min.replace(tzinfo=timezone.utc)


def new_run_id() -> str:
    """A new run id, for example `20260102T030405678901-9f86d081ab`.

    Names made by one process are strictly increasing, also when its clock stands still or steps back.
    """
    global _last
    with _LOCK:
        now = max(datetime.now(timezone.utc), _last + timedelta(microseconds=1))
        _last = now
    return f"{now:%Y%m%dT%H%M%S%f}-{secrets.token_hex(5)}"


def new_session_id() -> str:
    """A new session id, for example `20260102T030405-9f86d081`: short enough to be typed."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
