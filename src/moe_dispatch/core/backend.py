"""BackendSpec: everything the tool knows about one dispatcher backend, without importing it.

Built-in specifications are YAML files in `core/backends/`; third parties register one through the entry-point group
`moe_dispatch.backends` (an object or a zero-argument callable that returns a BackendSpec). Nothing else in the package
names a backend, so adding one touches no other file.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moe_dispatch.core.choice import KnobValue


class Knob(BaseModel):
    """One tunable of a backend.

    Fields:
        default: value used when the knob is not set; None means the library chooses.
        allowed: closed list of values, or None when any value of the type is legal.
        minimum, maximum: bounds of a number, included; multiple: an integer must be divisible by it.
        sweep: values that `tune` and `select` try when the knob is left open (empty: not swept).
        sm: whether the knob is a streaming-multiprocessor count (an unswept one labels the arm `untuned`).
        between_domains: matters only where ranks are in several domains; not swept inside one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["int", "float", "str", "bool"]
    default: KnobValue = None
    allowed: tuple[KnobValue, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    multiple: int | None = None
    sweep: tuple[KnobValue, ...] = ()
    sm: bool = False
    between_domains: bool = False
    help: str = ""
    source: str = ""


class SymbolNeed(BaseModel):
    """The exact symbols that one consumer imports from one module."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    module: str
    symbols: tuple[str, ...] = ()
    source: str = ""


class Consumer(BaseModel):
    """Who imports the package: our adapter, or a Megatron-Core version; they need different symbols.

    Fields:
        name: several entries of one name hold for different versions of it, newest first.
        versions: conditions on the version of the distribution `name` (`>=0.13`, `<0.19`); none: every version.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    versions: tuple[str, ...] = ()
    needs: tuple[SymbolNeed, ...]

    @property
    def label(self) -> str:
        """Name and versions, for a person."""
        return " ".join((self.name, ",".join(self.versions))).strip()


class PackageNeeds(BaseModel):
    """What a package asks of the machine and of the libraries under it; the gate's level `supported` checks it.

    Fields:
        capability_min: lowest CUDA compute capability, `9.0`.
        binaries: modules whose compiled parts must hold code for this GPU and fit torch's CUDA.
        nccl_min: oldest NCCL at run time.
        nvshmem_split: versions from which NVSHMEM orders queue pairs in another way: device code and host library must
            both be older or both be as new.
        compiler: the package compiles kernels at run time and needs the CUDA compiler of this environment variable's
            folder (`CUDA_HOME`).
        peer_access: GPUs of one node must reach each other's memory over NVLink.
        fabric_handles: memory is shared between nodes where NVLink reaches across them (IMEX).
        sources: field -> where it is from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    capability_min: str | None = None
    binaries: tuple[str, ...] = ()
    nccl_min: str | None = None
    nvshmem_split: tuple[str, ...] = ()
    compiler: str | None = None
    peer_access: bool = False
    fabric_handles: bool = False
    sources: dict[str, str] = Field(default_factory=dict)


class Capabilities(BaseModel):
    """What the backend can do.

    Fields:
        dtypes: payload dtypes, torch spelling without the prefix.
        devices: torch device types it moves tokens on.
        row_order: order of rows inside one expert (`source_rank_token` for ours, `unspecified` otherwise).
        combine_roundings: how many times a combined value is rounded to the payload dtype; `world` when it grows
            with the group. The oracle's bound uses it.
        capacity, fp8, cuda_graph: optional features.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    devices: tuple[str, ...] = ("cpu", "cuda")
    row_order: Literal["source_rank_token", "unspecified"] = "unspecified"
    combine_roundings: int | Literal["world"] = 1
    capacity: bool = False
    fp8: bool = False
    cuda_graph: bool = False


class MegatronMapping(BaseModel):
    """How Megatron selects this backend.

    Fields:
        dispatcher_type: value of `moe_token_dispatcher_type`.
        flex_backend: value of `moe_flex_dispatcher_backend` when the type is `flex`, else None.
        min_core_version: first Megatron-Core release that accepts it.
        sm_knob: our knob's name that maps to `moe_flex_dispatcher_num_sms`, or None.
        legacy_sm_field: the per-backend field of older releases, used below 0.19.
        bridge_flag: value for `--moe_flex_dispatcher_backend` of Bridge's performance harness; None when it is refused
            there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dispatcher_type: Literal["allgather", "alltoall", "flex"]
    flex_backend: str | None = None
    min_core_version: str = "0.12"
    sm_knob: str | None = None
    legacy_sm_field: str | None = None
    bridge_flag: str | None = None
    source: str = ""


class BackendSpec(BaseModel):
    """One dispatcher backend.

    Fields:
        target: `module:Class` of the `moe_dispatch.dispatch.base.Dispatcher` subclass, imported only when used; None
            when this release holds no adapter (the backend can then be gated and emitted, never measured).
        kind: `builtin` needs torch only; `package` needs the modules named by its consumers.
        consumers: who imports what; the first is our adapter.
        needs: what the package asks of the machine and of the libraries under it.
        simplicity: 0 is simplest; a tie recommends the smallest.
        megatron: None when Megatron ships no such dispatcher.
        experimental: shown and measurable on request, never a candidate by itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    summary: str
    kind: Literal["builtin", "package"]
    target: str | None = None
    simplicity: int = 5
    platforms: tuple[str, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    needs: PackageNeeds = PackageNeeds()
    knobs: dict[str, Knob] = Field(default_factory=dict)
    capabilities: Capabilities = Capabilities()
    megatron: MegatronMapping | None = None
    experimental: bool = False
    install_hint: str = ""
    source: str = ""
