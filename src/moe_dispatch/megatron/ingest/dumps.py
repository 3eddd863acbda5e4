"""Configuration as a run printed it: Megatron-LM's argument dump, Bridge's summary and its ConfigContainer YAML.

Formats: NVIDIA/Megatron-LM@d98e8a64:megatron/training/arguments.py (_print_args),
NVIDIA-NeMo/Megatron-Bridge@067f987d:src/megatron/bridge/training/config.py (the summary, printed after validation) and
scripts/performance/run_recipe.py ("Final configuration:", printed before it).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from moe_dispatch.core.errors import UsageError

Stage = Literal["final_configuration", "config_file", "arguments", "saved_config", "summary"]
STAGES: tuple[Stage, ...] = ("final_configuration", "config_file", "arguments", "saved_config", "summary")
"""In the order in which a launch passes them; a later one is closer to what was built. Megatron-LM's arguments are
printed after their own validation and before the model's configuration resolves deprecated names."""

_ARGUMENT = re.compile(r"  (\w+) (\.*) (.*)$")
_DOTTED = 48
_SUMMARY_VALUE = re.compile(r"  (\w+): (.*?)(?:  \((?:Mcore )?default: .*\))?\s*$")
_SECTION = re.compile(r"\[(\w+)\]")
_YAML_LINE = re.compile(r"\s*(?:- |[\w.]+:(?:\s|$)|['\"\[{])")
_MAX_BLOCK_LINES = 20_000
_MAX_YAML_BYTES = 8 << 20


@dataclass
class Dump:
    """One printed configuration.

    Fields:
        stage: when it was printed.
        values: by Megatron's field name; fields outside the model's configuration also as `section.field`.
        complete: the end of the block was seen.
        defaults_omitted: only values that differ from Megatron-Core's defaults are listed.
    """

    stage: Stage
    values: dict[str, Any] = field(default_factory=dict)
    complete: bool = False

    @property
    def defaults_omitted(self) -> bool:
        """Whether a model field that is not listed has its default."""
        return self.stage == "summary" and self.complete


class DumpReader:
    """Reads the blocks that `scan` comes across; `following` is true inside one."""

    def __init__(self) -> None:
        self.dumps: list[Dump] = []
        self._open: Dump | None = None
        self._lines = 0
        self._section = ""
        self._rulers = 0
        self._yaml: list[str] = []

    @property
    def following(self) -> bool:
        """Inside a block."""
        return self._open is not None

    @property
    def stage(self) -> Stage | None:
        """Stage of the block that is open."""
        return self._open.stage if self._open is not None else None

    def feed(self, text: str) -> None:
        """One line of the log, of any kind."""
        if text.endswith(" arguments ------------------------"):
            self._start("arguments")
        elif "Configuration Summary (" in text:
            self._start("summary")
        elif text.rstrip().endswith("Final configuration:"):
            self._start("final_configuration")
        elif self._open is not None:
            self._inside(self._open, text)

    def close(self) -> None:
        """The log ends here."""
        if self._open is not None:
            self._finish(complete=False)

    def _start(self, stage: Stage) -> None:
        self.close()
        self._open = Dump(stage)
        self._lines, self._section, self._rulers, self._yaml = 0, "", 0, []

    def _finish(self, *, complete: bool) -> None:
        dump = self._open
        if dump is None:
            return
        self._open = None
        dump.complete = complete
        if dump.stage == "final_configuration":
            dump.values = flatten(_load_yaml("\n".join(self._yaml)))
        if dump.values:
            self.dumps.append(dump)

    def _inside(self, dump: Dump, text: str) -> None:
        self._lines += 1
        if self._lines > _MAX_BLOCK_LINES:
            self._finish(complete=False)
        elif dump.stage == "arguments":
            if "end of arguments -----" in text:
                self._finish(complete=True)
            elif match := _ARGUMENT.search(text):
                name, dots, value = match.groups()
                if len(dots) == max(0, _DOTTED - len(name)):
                    dump.values.setdefault(name, parse_value(value))
        elif dump.stage == "summary":
            self._summary_line(dump, text)
        elif text and not _YAML_LINE.match(text):
            self._finish(complete=True)
        else:
            self._yaml.append(text)

    def _summary_line(self, dump: Dump, text: str) -> None:
        if text.startswith("======"):
            self._rulers += 1  # one closes the title, the next one the block
            if self._rulers == 2:
                self._finish(complete=True)
        elif section := _SECTION.match(text):
            self._section = section[1]
        elif self._section and (match := _SUMMARY_VALUE.match(text)):
            name, value = match[1], parse_value(match[2])
            dump.values.setdefault(name if self._section == "model" else f"{self._section}.{name}", value)


def read_config_file(path: Path, *, saved_by_run: bool = False) -> Dump:
    """A ConfigContainer YAML, as Bridge saves it or its launchers print it with --dryrun.

    Args:
        saved_by_run: the run wrote it, which happens after validation; nothing in the file itself tells.

    Raises:
        UsageError: unreadable, no YAML mapping, or without a `model` section.
    """
    try:
        if path.stat().st_size > _MAX_YAML_BYTES:
            raise UsageError(f"{path} is larger than {_MAX_YAML_BYTES >> 20} MiB", "give a configuration dump")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"configuration {path} cannot be read: {error.strerror}", "give a YAML file") from None
    document = _load_yaml(text)
    if not isinstance(document, Mapping) or not isinstance(document.get("model"), Mapping):
        raise UsageError(
            f"{path} is not a ConfigContainer dump: no mapping 'model'",
            "give the YAML that logger.save_config_filepath wrote (/nemo_run/configs/ConfigContainer.yaml)",
        )
    stage: Stage = "saved_config" if saved_by_run else "config_file"
    return Dump(stage, values=flatten(document), complete=True)


def flatten(document: Any) -> dict[str, Any]:
    """`section.field` names; fields of `model` without the section. Nested values stay as they are."""
    values: dict[str, Any] = {}
    if not isinstance(document, Mapping):
        return values
    for section, content in document.items():
        if not isinstance(content, Mapping):
            continue
        for name, value in content.items():
            if isinstance(name, str) and name != "_target_":
                values[name if section == "model" else f"{section}.{name}"] = value
    return values


def parse_value(text: str) -> Any:
    """A Python literal where the text is one (`None`, `16`, `1e-08`, `['p2p']`), else the text (`torch.bfloat16`)."""
    text = text.strip()
    if len(text) > 4096:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text


def _load_yaml(text: str) -> Any:
    """Plain data; an object of a class that YAML names is read as its fields, and nothing is ever constructed."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except (yaml.YAMLError, ValueError, RecursionError, TypeError):
        return None


def _loader() -> Any:
    import yaml

    class Plain(yaml.SafeLoader):
        pass

    def construct(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None

    yaml.add_multi_constructor("!", construct, Loader=Plain)
    yaml.add_multi_constructor("tag:yaml.org,2002:python/", construct, Loader=Plain)
    return Plain
