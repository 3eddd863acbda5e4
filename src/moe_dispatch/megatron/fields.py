"""What Megatron knows about dispatchers in which release: `fields.yaml` as typed data."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.data import read_yaml
from moe_dispatch.core.errors import UsageError
from moe_dispatch.megatron.version import has_reached
from moe_dispatch.site.exchange import ExchangeFacts, exchange_facts


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ConfigField(_Data):
    """One TransformerConfig field; `since` is the first release that has it."""

    since: str


class VersionedNote(_Data):
    """Something to know about a backend in releases up to and including `until` (all when None).

    `other_workload`: what the release demands changes what is trained, so the backend has no arm beside a baseline.
    """

    text: str
    source: str
    until: str | None = None
    other_workload: bool = False


class FlexBackend(_Data):
    """Demands of one value of `moe_flex_dispatcher_backend`.

    Fields:
        smallest_group: fewest ranks of the TP x EP group with which Megatron builds it.
        float32_probs: routing weights must be float32 (`moe_router_dtype=fp32`).
        knob_fields: knob of ours -> field of Megatron, besides the SM count.
        refused_text: how Bridge replaces or refuses it on the GPUs where it is not accepted.
        exchange: its demands of the machine.
    """

    smallest_group: int = 1
    float32_probs: bool = False
    knob_fields: dict[str, str] = Field(default_factory=dict)
    refused_text: str = ""
    refused_source: str = ""
    notes: tuple[VersionedNote, ...] = ()
    exchange: ExchangeFacts = ExchangeFacts()


class FieldTable(_Data):
    """The whole file."""

    fields: dict[str, ConfigField]
    legacy_sm_fields: tuple[str, ...]
    flex_backends: dict[str, FlexBackend]

    def backend(self, name: str | None) -> FlexBackend:
        """Demands of a flex backend; none for one that is not listed (a third party's)."""
        known = self.flex_backends.get(name or "", FlexBackend())
        return known.model_copy(update={"exchange": exchange_facts(name)})

    def has(self, field: str, version: str) -> bool:
        """Whether release `version` has `field`; a field that is not listed is assumed to exist.

        Raises:
            UsageError: `version` is no release number.
        """
        known = self.fields.get(field)
        return known is None or has_reached(version, known.since)

    def require(self, field: str, version: str) -> None:
        """Refuse a field that `version` does not have.

        Raises:
            UsageError: with the first release that has it.
        """
        if not self.has(field, version):
            since = self.fields[field].since
            raise UsageError(
                f"Megatron-Core {version} has no field {field} (since {since})", f"use Megatron-Core {since} or newer"
            )


@cache
def load_fields() -> FieldTable:
    """Read `fields.yaml`."""
    return FieldTable.model_validate(read_yaml("moe_dispatch.megatron", "fields.yaml"))
