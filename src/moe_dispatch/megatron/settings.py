"""One training job's configuration under canonical names, whoever wrote it: arguments, YAML, overrides, recipe or log.

Names are fields of Megatron-Core's TransformerConfig; what Megatron-Bridge keeps elsewhere has its dotted name
(`comm_overlap.overlap_moe_expert_parallel_comm`) or, where Megatron-LM has the same argument, that name
(`micro_batch_size`, `global_batch_size`, `train_iters`, `seq_length`). `lint` and `ingest` share this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from moe_dispatch.megatron.settings_fields import Setting, settings_fields

Framework = Literal["megatron-lm", "megatron-bridge", "unknown"]
Launcher = Literal["pretrain", "run_script", "run_recipe", "unknown"]
Stage = Literal["requested", "validated"]
OriginKind = Literal["default", "recipe", "file", "script", "flag", "override", "declared", "log", "derived"]


class UnknownSetting(Exception):
    """A value that this configuration does not hold and that no default stands for; what asks for it stays silent.

    Args:
        name: of the field, variable or fact that is not known.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Origin:
    """Where a value was written.

    Fields:
        kind: `recipe` (code of a recipe), `file` (a YAML), `script` (a shell script), `flag` (an argument of the
            program), `override` (Hydra), `declared` (given to us), `log` (a dump in a log), `derived` (a launcher
            rewrote it), `default`.
        where: file and line, or the words themselves.
    """

    kind: OriginKind
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".strip()


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Value:
    """A setting and where it comes from."""

    value: Setting
    origin: Origin = DEFAULT


@dataclass(frozen=True, kw_only=True)
class MegatronConfig:
    """What is known of one job before (or, from a log, after) the framework validated it.

    Fields:
        values: explicitly set fields by canonical name, last writer wins.
        env: variables at process start.
        launcher: `pretrain` (pretrain_gpt.py, or a Bridge script that calls pretrain() itself), or the two runners of
            Bridge's performance harness, which rewrite the dispatcher differently.
        stage: `validated` when the values were printed after the framework's own rewriting.
        complete: an absent field has its default; False when the recipe behind overrides, or a variable in a script,
            is not known.
        open_fields: fields that were set to something that could not be read.
        core_version, bridge_version: as declared or detected; None when unknown.
        world_size: ranks of the job.
        env_origins: where the variables were set.
        shadowed_env: a recipe's values of variables that the shell sets otherwise; the shell wins.
        recipe: name of the recipe underneath, empty without; gpu: GPU named by the launcher's arguments.
        notes: what could not be read, for a person.
    """

    values: Mapping[str, Value]
    env: Mapping[str, str] = field(default_factory=dict)
    framework: Framework = "unknown"
    launcher: Launcher = "unknown"
    stage: Stage = "requested"
    complete: bool = True
    open_fields: frozenset[str] = frozenset()
    core_version: str | None = None
    bridge_version: str | None = None
    world_size: int | None = None
    env_origins: Mapping[str, Origin] = field(default_factory=dict)
    shadowed_env: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    gpu: str | None = None
    notes: tuple[str, ...] = ()

    def given(self, name: str) -> Value | None:
        """The explicit value of a field; None when nobody set it."""
        return self.values.get(name)

    def value(self, name: str) -> Value:
        """The explicit value, else the default of the release.

        Raises:
            UnknownSetting: it was set to something unreadable, or is absent from a configuration that is not complete.
        """
        found = self.values.get(name)
        if found is not None:
            return found
        if name in self.open_fields or not self.complete:
            raise UnknownSetting(name)
        known = settings_fields().get(name)
        return Value(known.default_in(self.core_version) if known else None)

    def get(self, name: str) -> Setting:
        """The value alone.

        Raises:
            UnknownSetting: see `value`.
        """
        return self.value(name).value

    @property
    def is_bridge(self) -> bool:
        """Whether Megatron-Bridge launches it."""
        return self.framework == "megatron-bridge"
