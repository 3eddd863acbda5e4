"""Checks on names and values of fields, by release."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from moe_dispatch.megatron.effective_sms import LEGACY, UNIFIED
from moe_dispatch.megatron.resolution import BACKEND_FIELD, TYPE_FIELD
from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule
from moe_dispatch.megatron.settings import Value
from moe_dispatch.megatron.settings_fields import SettingsField, other_fields, settings_fields

_OWN_RULES = (TYPE_FIELD, BACKEND_FIELD, "moe_router_dtype", "recompute_granularity")
"""Their values have rules of their own."""
_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
)
_REPLACED = {UNIFIED: f"write {LEGACY[0]} or {LEGACY[1]}, by the backend"}
_CLOSE = 0.75


@rule("field-not-in-release")
def field_not_in_release(job: Job) -> Iterator[Hit]:
    """Known fields outside their releases."""
    version = job.config.core_version
    if version is None or job.config.stage == "validated":
        return
    for name, value in _given(job):
        known = settings_fields().get(name) or other_fields().get(name)
        if known is not None and not known.exists_in(version) and value.value not in (None, False, ()):
            exists = f"since {known.since}" if known.since and not known.until else f"up to {known.until}"
            fix = (_REPLACED[name],) if name in _REPLACED else ()
            values = {"field": name, "origin": value.origin, "version": version, "exists": exists}
            yield Hit(values, fix=fix)


@rule("unknown-moe-field")
def unknown_field(job: Job) -> Iterator[Hit]:
    """Names that start as fields of the MoE layer do."""
    names = {*settings_fields(), *other_fields()}
    for name, value in _given(job):
        if name.startswith("moe_") and name not in names and name != "moe_a2a_overlap":
            near = difflib.get_close_matches(name, names, n=1, cutoff=_CLOSE)
            close = f"; did you mean {near[0]}?" if near else ""
            yield Hit({"field": name, "origin": value.origin, "close": close})


def _given(job: Job) -> Iterator[tuple[str, Value]]:
    return ((name, value) for name, value in job.config.values.items() if value.origin.kind != "default")


@rule("value-not-allowed")
def value_not_allowed(job: Job) -> Iterator[Hit]:
    """Closed lists of choices."""
    for name, value in _given(job):
        known = settings_fields().get(name)
        if known is None or not known.choices or name in _OWN_RULES or value.value is None:
            continue
        if str(value.value) not in known.choices:
            allowed = ", ".join(known.choices)
            yield Hit({"field": name, "value": value.value, "origin": value.origin, "allowed": allowed})


@rule("value-of-wrong-type")
def wrong_type(job: Job) -> Iterator[Hit]:
    """Numbers and switches."""
    for name, value in _given(job):
        known = settings_fields().get(name)
        if known is not None and value.value is not None and not _fits(known, value.value):
            yield Hit({"field": name, "value": value.value, "origin": value.origin, "type": _WORDS[known.type]})


_WORDS = {"int": "integer", "float": "number", "bool": "switch (true or false)", "str": "name", "list": "list"}


def _fits(known: SettingsField, value: object) -> bool:
    if known.type == "bool":
        return isinstance(value, bool)
    if known.type == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if known.type == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return True


@rule("parallel-size-invalid")
def size_invalid(job: Job) -> Iterator[Hit]:
    """Zero or less."""
    for name in _SIZES:
        given = job.config.given(name)
        number = given.value if given else None
        if given and isinstance(number, int | float) and not isinstance(number, bool) and number < 1:
            yield Hit({"field": name, "value": number, "origin": given.origin})
