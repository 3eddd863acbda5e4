"""How many SMs a configuration gives to a flex backend: unified knob, deprecated names and defaults, by release.

NVIDIA/Megatron-LM@d98e8a64:megatron/core/transformer/transformer_config.py (deprecated names reach whatever backend
runs; the unified one wins over them) and moe/token_dispatcher.py (defaults); the wheels 0.16.1 to 0.18.2 read one name
for each backend.
"""

from __future__ import annotations

from dataclasses import dataclass

from moe_dispatch.megatron.settings import MegatronConfig, UnknownSetting
from moe_dispatch.megatron.version import has_reached

UNIFIED = "moe_flex_dispatcher_num_sms"
LEGACY = ("moe_deepep_num_sms", "moe_hybridep_num_sms")
UNIFIED_SINCE = "0.19"
_OWN = {"deepep": "moe_deepep_num_sms", "hybridep": "moe_hybridep_num_sms"}
_DEFAULTS = {"deepep": 20}
"""When no name is set; HybridEP's and NCCL-EP's libraries choose by themselves."""


@dataclass(frozen=True)
class SmCount:
    """SMs in effect, the field that gave them, and values of deprecated names that contradict each other."""

    count: int | None = None
    field: str | None = None
    conflict: tuple[tuple[str, int], ...] = ()


def is_unified(config: MegatronConfig) -> bool:
    """Whether this release reads the unified name; an unknown release counts as current."""
    return config.core_version is None or has_reached(config.core_version, UNIFIED_SINCE)


def sm_count(config: MegatronConfig, backend: str | None) -> SmCount:
    """The SM count that reaches `backend`."""
    if backend is None:
        return SmCount()
    if not is_unified(config):
        own = _OWN.get(backend)
        return SmCount() if own is None else _of(config, own, backend)
    unified = given_count(config, UNIFIED)
    if unified is not None:
        return SmCount(unified, UNIFIED)
    legacy = [(name, count) for name in LEGACY if (count := given_count(config, name)) is not None]
    if len({count for _, count in legacy}) > 1:
        return SmCount(conflict=tuple(legacy))
    if legacy:
        return SmCount(legacy[0][1], legacy[0][0])
    return SmCount(_DEFAULTS.get(backend) if config.complete else None)


def given_count(config: MegatronConfig, name: str) -> int | None:
    """An explicit count; None when it is not set, null, or no integer."""
    found = config.given(name)
    value = found.value if found else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _of(config: MegatronConfig, name: str, backend: str) -> SmCount:
    count = given_count(config, name)
    if count is not None:
        return SmCount(count, name)
    try:
        default = config.get(name)
    except UnknownSetting:
        return SmCount()
    return SmCount(default if isinstance(default, int) else None)
