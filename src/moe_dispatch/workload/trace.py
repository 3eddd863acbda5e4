"""Recorded routing: top-k ids [T, K] that are replayed, or expert loads [E] that are drawn from.

Files: `.npy` (one array), `.npz` (arrays `expert_ids` with optional `probs`, or `loads`; a single unnamed array is
taken by its number of dimensions), `.json` (a list, a list of lists, or an object with the same names).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_dispatch.core.errors import WorkloadError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LOAD_TOLERANCE = 1e-3
"""Relative excess over "every token" that a recorded load may show (rounding of published histograms)."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Exactly one of `expert_ids` (int64 [T, K]) and `loads` (float64 [E]) is set; `probs` belongs to the ids."""

    path: Path
    expert_ids: NDArray[np.int64] | None = None
    probs: NDArray[np.float32] | None = None
    loads: NDArray[np.float64] | None = None

    def replay(
        self, num_tokens: int, num_experts: int, topk: int, rank: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows rank*T .. rank*T+T-1 of the recorded choices, starting over at the end.

        Raises:
            WorkloadError: another K, an id outside -1..E-1, or a token that names an expert twice.
        """
        import numpy as np

        ids = self.expert_ids
        assert ids is not None
        if ids.shape[1] != topk:
            raise WorkloadError(
                f"trace {self.path}: holds top-{ids.shape[1]} choices, the workload needs top-{topk}",
                "record the trace with the model that is measured",
            )
        if ids.size and (ids.min() < -1 or ids.max() >= num_experts):
            raise WorkloadError(
                f"trace {self.path}: expert ids run from {ids.min()} to {ids.max()}, allowed are -1..{num_experts - 1}",
                "record the trace with the model that is measured",
            )
        ordered = np.sort(ids, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            raise WorkloadError(f"trace {self.path}: a token names an expert twice")
        rows = (rank * num_tokens + np.arange(num_tokens)) % len(ids)
        picked = ids[rows]
        if self.probs is not None:
            return picked, np.where(picked >= 0, self.probs[rows], np.float32(0))
        return picked, np.where(picked >= 0, np.float32(1.0 / topk), np.float32(0))

    def fractions(self, num_experts: int, topk: int) -> NDArray[np.float64]:
        """Fraction of tokens that each expert gets, [E], summing to K.

        Raises:
            WorkloadError: another E, negative loads, fewer than K experts in use, or more rows than tokens.
        """
        import numpy as np

        loads = self.loads
        assert loads is not None
        if len(loads) != num_experts:
            raise WorkloadError(
                f"trace {self.path}: holds loads of {len(loads)} experts, the workload has {num_experts}",
                "record the loads with the model that is measured",
            )
        if not np.isfinite(loads).all() or (loads < 0).any() or np.count_nonzero(loads) < topk:
            raise WorkloadError(
                f"trace {self.path}: loads must be finite, >= 0, and at least topk={topk} of them above 0"
            )
        fractions = loads / loads.sum() * topk
        if fractions.max() > 1 + LOAD_TOLERANCE:
            raise WorkloadError(
                f"trace {self.path}: expert {int(fractions.argmax())} has {fractions.max():.3f} times as many rows as "
                f"there are tokens, which top-{topk} routing cannot give",
                "check that the loads belong to this top-k",
            )
        return np.asarray(np.minimum(fractions, 1.0), dtype=np.float64)


def load_trace(path: Path) -> Trace:
    """Read a trace file.

    Raises:
        WorkloadError: unknown suffix, unreadable or damaged file, wrong number of dimensions, no tokens.
    """
    readers = {".npy": _read_numpy, ".npz": _read_numpy, ".json": _read_json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise WorkloadError(f"trace {path}: suffix '{path.suffix}' is not known", "use .npy, .npz or .json")
    try:
        arrays = reader(path)
    except OSError as error:
        raise WorkloadError(f"trace {path}: cannot be read: {error.strerror or error}", "check the file") from None
    except Exception as error:  # numpy raises many kinds for damaged archives
        raise WorkloadError(f"trace {path}: damaged or not a trace: {error}", "write it again") from None
    return _build(path, arrays)


def _read_numpy(path: Path) -> dict[str, Any]:
    import numpy as np

    loaded = np.load(path, allow_pickle=False)
    return {"": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}


def _read_json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return dict(document) if isinstance(document, dict) else {"": document}


def _build(path: Path, arrays: Mapping[str, Any]) -> Trace:
    import numpy as np

    names = [name for name in arrays if name in ("expert_ids", "loads")]
    if not names and len(arrays) == 1:
        names = list(arrays)
    if len(names) != 1:
        raise WorkloadError(
            f"trace {path}: holds {', '.join(arrays) or 'nothing'}; exactly one of expert_ids and loads is needed"
        )
    try:
        data = np.asarray(arrays[names[0]])
        kind = data.dtype.kind
    except ValueError:
        raise WorkloadError(
            f"trace {path}: rows have different lengths", "every token needs K ids; use -1 to drop"
        ) from None
    wants_loads = names[0] == "loads" or (names[0] != "expert_ids" and data.ndim == 1)
    if wants_loads and data.ndim == 1 and kind in "iuf":
        return Trace(path=path, loads=data.astype(np.float64))
    if not wants_loads and data.ndim == 2 and kind in "iu" and len(data):
        probs = _probs_of(path, arrays["probs"], data.shape) if "probs" in arrays else None
        return Trace(path=path, expert_ids=data.astype(np.int64), probs=probs)
    raise WorkloadError(
        f"trace {path}: array of shape {data.shape} and type {data.dtype} is neither choices nor loads",
        "use integer ids [tokens, topk] or numeric loads [experts]",
    )


def _probs_of(path: Path, given: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    import numpy as np

    try:
        probs = np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"trace {path}: probs are not numbers in rows of one length: {error}") from None
    if probs.shape != shape:
        raise WorkloadError(f"trace {path}: probs have shape {probs.shape}, expert_ids {shape}")
    if not np.isfinite(probs).all():
        raise WorkloadError(f"trace {path}: probs must be finite", "write it again")
    return probs
