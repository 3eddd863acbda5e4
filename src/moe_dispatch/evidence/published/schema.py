"""JSON Schema of the shipped files: `python -m moe_dispatch.evidence.published.schema [FILE]`.

The exported copy is docs/schema/published-evidence.schema.json; a test keeps it current.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from moe_dispatch.evidence.published.files import FILES, SCHEMA_VERSION


def published_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of one file: rows of one kind."""
    adapters: list[tuple[str, Literal["validation"], TypeAdapter[Any]]] = [
        (name, "validation", TypeAdapter(row_class)) for name, row_class in FILES.items()
    ]
    rows, definitions = TypeAdapter.json_schemas(adapters)
    kinds = [{"type": "array", "items": schema} for schema in rows.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Published evidence",
        "type": "object",
        "required": ["schema_version", "collected", "rows"],
        "additionalProperties": False,
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "collected": {"type": "string", "format": "date"},
            "rows": {"anyOf": kinds},
        },
        **definitions,
    }


def schema_text() -> str:
    """The schema as the exported file holds it."""
    return json.dumps(published_schema(), indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Print the schema, or write it to the file named by the only argument."""
    if arguments:
        Path(arguments[0]).write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
