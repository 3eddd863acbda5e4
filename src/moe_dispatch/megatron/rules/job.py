"""What the rules look at: one configuration, what it really runs, and the site; an unknown fact keeps a rule silent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from moe_dispatch.megatron.effective import Effective
from moe_dispatch.megatron.resolution import FLEX_BACKENDS, TYPE_FIELD
from moe_dispatch.megatron.settings import MegatronConfig, UnknownSetting
from moe_dispatch.megatron.settings_fields import Setting
from moe_dispatch.megatron.version import parse_release
from moe_dispatch.site.hardware import Hardware, load_hardware
from moe_dispatch.site.model import Site
from moe_dispatch.site.versions import matches

CURRENT_RELEASE = (0, 20)
"""Taken for a job whose Megatron-Core release is not known; rules for certain releases then say so."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job under the rules.

    Fields:
        effective: None when the dispatcher is not known.
        packages: component -> version, keys of `site.stack.stack_fingerprint`.
        declared_env: variables exported in the shell that starts the job, as far as they were given to us.
    """

    config: MegatronConfig
    effective: Effective | None = None
    site: Site | None = None
    packages: Mapping[str, str | None] = field(default_factory=dict)

    def get(self, name: str) -> Setting:
        """A setting; raises UnknownSetting when it is not known."""
        return self.config.get(name)

    def on(self, name: str) -> bool:
        """A switch; null is off."""
        return self.get(name) is True

    def number(self, name: str) -> float | None:
        """A finite number, None for null; raises UnknownSetting for what is none."""
        value = self.get(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)):
            return value
        raise UnknownSetting(name)

    def size(self, name: str) -> int:
        """A parallel size: at least 1, null counts as 1."""
        value = self.number(name)
        if value is None:
            return 1
        if value < 1 or value != int(value):
            raise UnknownSetting(name)
        return int(value)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of names; a single name, or one with commas, counts as a list."""
        value = self.get(name)
        if value is None:
            return ()
        parts = value if isinstance(value, tuple) else (value,)
        return tuple(word for part in parts for word in str(part).replace(",", " ").split())

    def given(self, name: str) -> str:
        """Where a setting was written, for a message."""
        return str(self.config.value(name).origin)

    @property
    def core(self) -> tuple[int, int]:
        """Megatron-Core release."""
        return parse_release(self.config.core_version) if self.config.core_version else CURRENT_RELEASE

    @property
    def type(self) -> str:
        """The dispatcher type as Megatron-Core's validation sees it."""
        return self._resolved.core_type

    @property
    def backend(self) -> str | None:
        """The backend field as Megatron-Core's validation sees it, its default included."""
        return self._resolved.core_backend

    @property
    def _resolved(self) -> Effective:
        if self.effective is None:
            raise UnknownSetting(TYPE_FIELD)
        return self.effective

    @property
    def running(self) -> str:
        """The dispatcher that runs, or that would if nothing stopped the job."""
        runs = self._resolved.effective or self._resolved.requested
        if runs is None:
            raise UnknownSetting(TYPE_FIELD)
        return runs

    def runs(self, *backends: str) -> bool:
        """Whether one of these dispatchers runs."""
        return self.running in backends

    @property
    def is_flex(self) -> bool:
        """Whether a flex backend runs."""
        return self.running in FLEX_BACKENDS

    @property
    def expert_tp(self) -> int:
        """Expert tensor parallel size with the framework's default: TP in Megatron-Core, 1 in Bridge with EP > 1."""
        if self.number("expert_tensor_parallel_size") is not None:
            return self.size("expert_tensor_parallel_size")
        return 1 if self.config.is_bridge and self.ep > 1 else self.tp

    @property
    def ep(self) -> int:
        """Expert parallel size."""
        return self.size("expert_model_parallel_size")

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.size("tensor_model_parallel_size")

    @property
    def cp(self) -> int:
        """Context parallel size."""
        return self.size("context_parallel_size")

    @property
    def pp(self) -> int:
        """Pipeline parallel size."""
        return self.size("pipeline_model_parallel_size")

    @property
    def group(self) -> int:
        """Ranks that exchange tokens."""
        return self.ep * self.expert_tp

    @property
    def world(self) -> int | None:
        """Ranks of the job, None when unknown; a site says what there is, not what the job takes."""
        return self.config.world_size

    @property
    def tokens(self) -> int:
        """Tokens that one rank routes in one micro-batch."""
        parts = self.cp * (self.tp if self.tp > 1 and self.get("sequence_parallel") is not False else 1)
        for name in ("seq_length", "micro_batch_size"):
            if self.get(name) is None:
                raise UnknownSetting(name)
        tokens = self.size("seq_length") * self.size("micro_batch_size")
        if tokens % parts:
            raise UnknownSetting("tokens per rank")
        return tokens // parts

    @property
    def gpu(self) -> Hardware:
        """The GPU of the site, or the one named to the launcher."""
        name = (self.site.gpu if self.site else None) or self.config.gpu
        found = load_hardware().get(name or "")
        if found is None:
            raise UnknownSetting("GPU")
        return found

    def package_below(self, name: str, version: str) -> bool:
        """Whether a package is older than `version`; raises UnknownSetting when its version is not known."""
        have = self.packages.get(name)
        if have is None:
            raise UnknownSetting(f"version of {name}")
        return matches(have, f"<{version}")

    @property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        experts = self.number("num_moe_experts")
        return experts is not None and experts > 0

    @cached_property
    def overlap(self) -> bool:
        """Whether EP communication overlaps computation, under the name that the framework reads."""
        return self.overlap_setting("overlap_moe_expert_parallel_comm")

    def overlap_setting(self, name: str) -> bool:
        """A switch that Bridge takes from `comm_overlap` whenever that section exists."""
        bridge_name = f"comm_overlap.{name}"
        given = self.config.given(bridge_name)
        if given is not None:
            return given.value is True
        if self.config.is_bridge and any(key.startswith("comm_overlap") for key in self.config.values):
            return False
        return self.on(name)

    @cached_property
    def graph_impl(self) -> str:
        """Implementation of CUDA graphs, the deprecated switches included."""
        given = self.get("cuda_graph_impl")
        if given in (None, "none"):
            if self.on("enable_cuda_graph"):
                return "local"
            if self.on("external_cuda_graph"):
                return "transformer_engine"
        if given == "local" and "full_iteration" in self._raw_modules:
            return "full_iteration"
        return "none" if given is None else str(given)

    @cached_property
    def graph_modules(self) -> tuple[str, ...]:
        """What a layer's graphs capture; empty means the whole layer."""
        return tuple(word for word in self._raw_modules if word not in ("full", "full_iteration"))

    @cached_property
    def _raw_modules(self) -> tuple[str, ...]:
        alias = self.config.given("cuda_graph_scope")
        if self.core < (0, 18) or (alias is not None and alias.value is not None):
            return self.words("cuda_graph_scope")
        return self.words("cuda_graph_modules")

    @cached_property
    def recomputed(self) -> tuple[str, ...]:
        """Modules that selective recomputation names; Megatron-Core's default is core_attn."""
        given = self.get("recompute_modules")
        named = ("core_attn",) if given is None else self.words("recompute_modules")
        return (*named, "moe") if self.on("moe_layer_recompute") else named

    @property
    def has_virtual_stages(self) -> bool:
        """Whether pipeline ranks hold several stages; a written layout of the pipeline may say so instead of a size."""
        layout = self.config.given("pipeline_model_parallel_layout")
        if layout is not None and layout.value is not None:
            return True
        return self.number("virtual_pipeline_model_parallel_size") is not None

    @property
    def static_moe(self) -> bool:
        """Whether the MoE layer's shapes are static and need no host synchronisation."""
        if self.number("moe_expert_capacity_factor") is not None and self.on("moe_pad_expert_input_to_capacity"):
            return True
        fixed = self.core >= (0, 18) and self.number("moe_expert_rank_capacity_factor") is not None
        return fixed and self.runs("hybridep", "ncclep")

    def variable(self, name: str) -> str | None:
        """An environment variable at process start; None when it is not set.

        Raises:
            UnknownSetting: it is not set as far as is known, and what sets the environment is not known either.
        """
        found = self.config.env.get(name)
        if found is None and not self.config.complete:
            raise UnknownSetting(name)
        return found
