"""JSON Schema of the stored record, for readers in other languages: `python -m moe_dispatch.evidence.schema [FILE]`.

The exported copy is docs/schema/run-record.schema.json; a test keeps it current.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from moe_dispatch.evidence.record import SCHEMA_VERSION, RunRecord


def run_record_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of one `record.json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": f"schema_version {SCHEMA_VERSION}; performance is present if and only if status is ok",
        **RunRecord.model_json_schema(),
    }


def schema_text() -> str:
    """The schema as the exported file holds it."""
    return json.dumps(run_record_schema(), indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Print the schema, or write it to the file named by the only argument."""
    if arguments:
        Path(arguments[0]).write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
