"""The shipped files: one JSON file for each kind, one row a line, sorted by id, empty values left out.

JSON, because YAML of this size takes over a second to load. A row is edited by hand like any line of text; `validate`
says what does not fit, and `validate --write` puts the file in order and renews the findings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from moe_dispatch.core.errors import StoreError
from moe_dispatch.evidence.published.pairs import Arm, KnobRow, PairRow
from moe_dispatch.evidence.published.rows import MicroRow, Misfit, RecipeRow, Row, TrainingRow

SCHEMA_VERSION = 1
FILES: Mapping[str, type[Row]] = {
    "training.json": TrainingRow,
    "pairs.json": PairRow,
    "knobs.json": KnobRow,
    "recipes.json": RecipeRow,
    "micro.json": MicroRow,
}
"""File name -> class of its rows."""

R = TypeVar("R", bound=Row)


def data_file(name: str) -> Path:
    """Path of a shipped file."""
    return Path(str(resources.files("moe_dispatch.evidence").joinpath("data", name)))


def file_of(row_class: type[Row]) -> str:
    """Name of the file that holds rows of this class."""
    return next(name for name, each in FILES.items() if each is row_class)


@cache
def load(row_class: type[R], path: Path | None = None) -> tuple[R, ...]:
    """Rows of one kind, in file order.

    Args:
        path: another file of the same form; default the shipped one.

    Raises:
        StoreError: the file is missing, is not JSON, or holds a row with unknown or missing fields.
    """
    where = path or data_file(file_of(row_class))
    return tuple(row_of(row_class, raw, where) for raw in read_raw(where))


def read_raw(path: Path) -> list[dict[str, Any]]:
    """The rows of a file as they stand there.

    Raises:
        StoreError: the file is missing, is not JSON, or has another schema version.
    """
    rows: list[dict[str, Any]] = read_document(path)["rows"]
    return rows


def read_document(path: Path) -> dict[str, Any]:
    """A whole file: `schema_version`, `collected` (day of the newest source that was read) and `rows`.

    Raises:
        StoreError: as `read_raw`.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", "reinstall the package") from None
    except ValueError as error:
        raise StoreError(f"{path} is not JSON: {error}", "correct that line of the file") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}; this release reads {SCHEMA_VERSION}", "upgrade it")
    checked: dict[str, Any] = document
    return checked


def row_of(row_class: type[R], raw: Mapping[str, Any], where: Path) -> R:
    """One row from its JSON object.

    Raises:
        StoreError: an unknown field, or one that is missing.
    """
    values: dict[str, Any] = {key: _frozen(key, value) for key, value in raw.items()}
    try:
        return row_class(**values)
    except TypeError as error:
        name = raw.get("id", "without an id")
        problem = str(error).partition("__init__() ")[2] or str(error)
        raise StoreError(f"{where}: row {name}: {problem}", "see docs/schema/published-evidence.schema.json") from None


def _frozen(key: str, value: Any) -> Any:
    if key in ("baseline", "treatment"):
        return Arm(**value)
    if key == "findings":
        return tuple(Misfit(**each) for each in value)
    return tuple(value) if isinstance(value, list) else value


def plain(row: Row) -> dict[str, Any]:
    """A row as its JSON object: fields at their default are left out."""
    kept: dict[str, Any] = {}
    for each in fields(row):
        value = getattr(row, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if value != default or (each.default is MISSING and each.default_factory is MISSING):
            kept[each.name] = _plain(value)
    return kept


def _plain(value: Any) -> Any:
    if isinstance(value, Arm):
        return {key: each for key, each in asdict(value).items() if each not in ("", None)}
    if isinstance(value, tuple):
        return [asdict(each) if isinstance(each, Misfit) else each for each in value]
    return value


def text_of(rows: Iterable[Row], collected: str) -> str:
    """The file's text: sorted by id, one row a line, so that a change of one row is a change of one line."""
    lines = [json.dumps(plain(row), ensure_ascii=False) for row in sorted(rows, key=lambda row: row.id)]
    head = f'{{"schema_version": {SCHEMA_VERSION}, "collected": {json.dumps(collected)}, "rows": [\n'
    return head + ",\n".join(lines) + "\n]}\n"
