"""Signs in a configuration that several themes look for."""

from __future__ import annotations

from moe_dispatch.megatron.rules.job import Job

_VARIABLE_LENGTHS = {
    "variable_seq_lengths": "variable sequence lengths",
    "sequence_packing": "sequence packing",
    "packed_sequence": "packed sequences",
    "offline_packing_specs": "packed sequences",
}


def is_set(job: Job, name: str) -> bool:
    """Whether somebody set a field to something other than nothing."""
    found = job.config.given(name)
    return found is not None and found.value not in (None, False, 0, ())


def uneven_lengths(job: Job) -> str | None:
    """What says that ranks may hold different numbers of tokens; None without a sign."""
    return next((text for name, text in _VARIABLE_LENGTHS.items() if is_set(job, name)), None)
