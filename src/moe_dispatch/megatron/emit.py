"""Writing configuration: `emit` for one choice, `ab_plan` for the training A/B that accepts it."""

from __future__ import annotations

from moe_dispatch.megatron.ab_plan import AbPlan, Arm, ab_plan
from moe_dispatch.megatron.configuration import DEFAULT_CORE_VERSION, Emitted, emit

__all__ = ["DEFAULT_CORE_VERSION", "AbPlan", "Arm", "Emitted", "ab_plan", "emit"]
