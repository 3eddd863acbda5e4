"""Compiles and runs a fused permute of 16 tokens, and compares it with plain indexing; started by `gate_permute.py`.

Megatron's permute fusion is Transformer Engine's Triton kernels, so these are tried first, then our own.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

TOKENS, HIDDEN, EXPERTS, TOPK = 16, 256, 8, 2
_CHARS = 3000


def main(arguments: list[str]) -> int:
    """Entry point: `REPORT.json`; writes `not_run`, or `ran` (kernels that are right), and `error` with `by`."""
    path = Path(arguments[0])
    report: dict[str, object] = {"ran": []}
    try:
        report["not_run"] = _unable()
        if not report["not_run"]:
            _try_all(report, path)
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {error}"[:_CHARS]
        report["traceback"] = "".join(traceback.format_exception(error))[-_CHARS:]
    path.write_text(json.dumps(report), encoding="utf-8")
    return 0


def _unable() -> str:
    missing = [module for module in ("torch", "triton") if importlib.util.find_spec(module) is None]
    if missing:
        return f"{missing[0]} is not installed"
    import torch

    importlib.import_module("triton")  # a broken one shows on any device
    return "" if torch.cuda.is_available() else "needs a GPU"


def _try_all(report: dict[str, object], path: Path) -> None:
    ran: list[str] = []
    for name, permute in (("transformer_engine", _transformer_engine), ("moe_dispatch", _ours)):
        report.update(by=name, ran=ran)
        path.write_text(json.dumps(report | {"error": f"{name} did not end"}), encoding="utf-8")
        if _check(permute):
            ran.append(name)


def _check(permute: Callable[..., object]) -> bool:
    """Whether it ran; a wrong result raises.

    Raises:
        ValueError: rows are not where they belong.
    """
    import torch

    x_TH = torch.arange(TOKENS, device="cuda").unsqueeze(1).expand(TOKENS, HIDDEN).to(torch.bfloat16).contiguous()
    token_T = torch.arange(TOKENS, device="cuda")
    ids_TK = torch.stack([token_T % EXPERTS, (token_T + 3) % EXPERTS], dim=1)
    rows = permute(x_TH, ids_TK)
    if rows is None:
        return False
    expected_R = torch.cat([token_T[(ids_TK == expert).any(1)] for expert in range(EXPERTS)])
    assert isinstance(rows, torch.Tensor)
    if not torch.equal(rows[: TOKENS * TOPK], x_TH[expected_R]):
        raise ValueError("the fused permute put rows where they do not belong")
    return True


def _transformer_engine(x_TH: object, ids_TK: object) -> object:
    """Transformer Engine's mask-map permute with probabilities; None where it is not installed."""
    try:
        module = importlib.import_module("transformer_engine.pytorch.permutation")
    except ModuleNotFoundError:
        return None
    import torch

    assert isinstance(x_TH, torch.Tensor)
    assert isinstance(ids_TK, torch.Tensor)
    mask_TE = torch.zeros(TOKENS, EXPERTS, dtype=torch.int32, device="cuda").scatter_(1, ids_TK, 1)
    return module.moe_permute_with_probs(x_TH, mask_TE.float(), mask_TE, TOKENS * TOPK)[0]


def _ours(x_TH: object, ids_TK: object) -> object:
    import torch

    from moe_dispatch.dispatch.permute import permute, routing_map

    assert isinstance(x_TH, torch.Tensor)
    assert isinstance(ids_TK, torch.Tensor)
    return permute(x_TH, routing_map(ids_TK, EXPERTS))[0]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
