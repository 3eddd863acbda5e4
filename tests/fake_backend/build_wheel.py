"""A build backend of a few lines: zips `src` with the metadata that pyproject.toml declares."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

INFO = "moe_dispatch_fake_backend-1.2.3.dist-info"
FILES = {
    "METADATA": "Metadata-Version: 2.1\nName: moe-dispatch-fake-backend\nVersion: 1.2.3\nRequires-Dist: moe-dispatch\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: build_wheel\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "entry_points.txt": "[moe_dispatch.backends]\nfake = fake_backend:spec\n",
}


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    name = "moe_dispatch_fake_backend-1.2.3-py3-none-any.whl"
    source = Path(__file__).with_name("src")
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as wheel:
        for path in sorted(source.rglob("*.py")):
            wheel.write(path, str(path.relative_to(source)))
        for file, text in FILES.items():
            wheel.writestr(f"{INFO}/{file}", text)
        wheel.writestr(f"{INFO}/RECORD", "".join(f"{entry},,\n" for entry in wheel.namelist()))
    return name
