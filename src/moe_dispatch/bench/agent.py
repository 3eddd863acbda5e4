"""torchrun with two additions: it dies with the launcher, and it says in a file which rank ended how.

Run as `python -m moe_dispatch.bench.agent EXITS_FILE [torchrun arguments]`. Exit codes come from torch's own
`ChildFailedError` (pytorch `torch/distributed/elastic/multiprocessing/errors/__init__.py`), not from parsing its log.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from moe_dispatch.bench.procs import die_with_parent


def main(arguments: list[str]) -> int:
    """Run torchrun; returns 0 when every local rank returned 0, else 1."""
    parent = int(os.environ.get("MOE_DISPATCH_LAUNCHER_PID", "0"))
    die_with_parent(parent)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    exits_file, *rest = arguments
    try:
        torchrun(rest)
    except ChildFailedError as error:
        host = socket.gethostname()
        rows = [{"rank": rank, "host": host, "exitcode": f.exitcode} for rank, f in sorted(error.failures.items())]
        Path(exits_file).write_text(json.dumps(rows), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
