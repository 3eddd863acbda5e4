"""moe-dispatch: choose a mixture-of-experts token dispatcher, with proof.

Importing this package is cheap by design: no submodule is imported here, and torch never is.
Import direction (import-linter enforces it), from the top down:
cli, flow, report, decide, megatron, bench, moe, dispatch, evidence, site, workload, core.
"""

__version__ = "0.1.0"
