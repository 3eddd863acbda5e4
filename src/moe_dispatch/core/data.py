"""The package's own data files."""

from __future__ import annotations

from importlib import resources
from typing import Any


def read_yaml(package: str, *path: str) -> Any:
    """Content of a YAML file of this package, read by libyaml where PyYAML was built with it: ten times faster.

    Args:
        package: dotted name, `moe_dispatch.site`.
        path: parts of the path below it.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files(package).joinpath(*path).read_text(encoding="utf-8")
    return yaml.load(text, Loader=loader)
