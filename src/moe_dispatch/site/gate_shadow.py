"""Whether what is imported under a package's name is that package: a folder, a checkout or another one may hide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shadow(report: Mapping[str, Any]) -> str:
    """What hides or mixes the module that a gate's child looked at, in one sentence; empty when nothing does."""
    top, where = report.get("top"), ", ".join(report.get("locations") or ())
    owners, claimed = report.get("owners") or [], report.get("distributions") or []
    if not where:
        return ""
    if report.get("namespace"):
        return "" if owners else f"{where} is a folder without __init__.py, which Python takes for the package {top}"
    if len(owners) > 1:
        return f"{' and '.join(owners)} both installed {top}: the files of one have overwritten the other's"
    if claimed and not owners:
        return f"{where} hides the {top} that {' and '.join(claimed)} installed"
    return ""


def is_plain_folder(report: Mapping[str, Any]) -> bool:
    """Whether the module is nothing but a folder that no distribution installed."""
    return bool(report.get("namespace")) and not report.get("owners") and bool(report.get("locations"))
