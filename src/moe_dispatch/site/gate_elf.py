"""What a compiled extension says about itself: libraries it needs, GPU architectures, the NVSHMEM linked into it.

Reads 64-bit little-endian ELF files (System V gABI) without loading them. CUDA keeps device code in the sections
`.nv_fatbin` and `__nv_relfatbin` as containers whose entries name kind and architecture in plain fields; the layout was
checked against what nvcc 13.0 writes. NVSHMEM's headers leave a constant with the version of the device library
(NVIDIA NVSHMEM 3.4.5, src/include/internal/host_transport/nvshmemi_version.h) in every object that uses it.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_FATBIN_MAGIC = b"\x50\xed\x55\xba"
_FATBIN_HEADER = struct.Struct("<IHHQ")  # magic, version, header size, size of all entries
_FATBIN_ENTRY = struct.Struct("<HHIQIIHHIIIQ")  # kind, -, header size, size, 2 x -, version, arch, 2 x -, flags
_PTX, _CUBIN = 1, 2
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 1 << 20, 1 << 21
_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_NOBITS = 2, 6, 8
_DT_NEEDED = 1
_NVSHMEM_DEVICE = re.compile(r"(_ZL\d+)?nvshmemi_device_lib_version$")


@dataclass(frozen=True, order=True)
class Architecture:
    """One GPU architecture that a binary holds code for.

    Fields:
        major, minor: compute capability.
        suffix: `a` runs on exactly this capability, `f` on this family, empty on later minors too.
        ptx: intermediate code, which the driver compiles for this capability and every later one.
    """

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}{'+PTX' if self.ptx else ''}"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of that capability can run it (CUDA C++ Programming Guide, binary and PTX compatibility)."""
        own = (self.major, self.minor)
        if self.suffix == "a":
            return capability == own
        if self.ptx and not self.suffix:
            return capability >= own
        return capability[0] == self.major and capability[1] >= self.minor


@dataclass(frozen=True)
class Binary:
    """One shared object.

    Fields:
        needed: sonames that the dynamic linker must find.
        architectures: what at least half of its containers of device code serve, sorted (a library that was linked in
            statically brings a set of its own, which says nothing about the package); empty without device code.
        nvshmem_device: version of the NVSHMEM device library inside, None when there is none or it is stripped.
    """

    path: str
    needed: tuple[str, ...]
    architectures: tuple[Architecture, ...]
    nvshmem_device: str | None

    @property
    def cuda_major(self) -> int | None:
        """Major version of the CUDA runtime it was linked with, None when that is static or absent."""
        found = [match[1] for name in self.needed if (match := re.match(r"libcudart\.so\.(\d+)", name))]
        return int(found[0]) if found else None


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int
    entry: int


def read_binary(path: str | Path) -> Binary | None:
    """What the file at `path` says; None when it is no readable 64-bit ELF file, or damaged."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:6] != b"\x7fELF\x02\x01":
                return None
            sections = _sections(data)
            return Binary(
                path=str(path),
                needed=_needed(data, sections),
                architectures=_common(list(_containers(data, sections))),
                nvshmem_device=_nvshmem_device(data, sections),
            )
    except (OSError, ValueError, OverflowError, struct.error, IndexError):  # a damaged table points anywhere
        return None


def _sections(data: mmap.mmap) -> list[_Section]:
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, offset + index * size) for index in range(count)]
    if not raw:
        return []
    table = raw[names][4]
    return [
        _Section(_text(data, table + name), kind, address, start, length, link, entry)
        for name, kind, _, address, start, length, link, _, _, entry in raw
    ]


def _text(data: mmap.mmap, offset: int) -> str:
    return data[offset : data.find(b"\0", offset)].decode("utf-8", "replace")


def _needed(data: mmap.mmap, sections: list[_Section]) -> tuple[str, ...]:
    found = []
    for section in sections:
        if section.kind != _SHT_DYNAMIC:
            continue
        names = sections[section.link].offset
        for tag, value in struct.iter_unpack("<QQ", data[section.offset : section.offset + section.size]):
            if tag == _DT_NEEDED:
                found.append(_text(data, names + value))
    return tuple(found)


def _containers(data: mmap.mmap, sections: list[_Section]) -> Iterator[set[Architecture]]:
    for section in sections:
        if section.name not in _FATBIN_SECTIONS or section.kind == _SHT_NOBITS:
            continue
        end = section.offset + section.size
        position = data.find(_FATBIN_MAGIC, section.offset, end)
        while position >= 0:
            _, _, header, size = _FATBIN_HEADER.unpack_from(data, position)
            yield set(_entries(data, position + header, min(position + header + size, end)))
            position = data.find(_FATBIN_MAGIC, position + max(header + size, len(_FATBIN_MAGIC)), end)


def _common(containers: list[set[Architecture]]) -> tuple[Architecture, ...]:
    filled = [each for each in containers if each]
    counts = Counter(architecture for each in filled for architecture in each)
    return tuple(sorted(architecture for architecture, count in counts.items() if 2 * count >= len(filled)))


def _entries(data: mmap.mmap, position: int, end: int) -> Iterator[Architecture]:
    while position + _FATBIN_ENTRY.size <= end:
        kind, _, header, size, *_, arch, _, _, flags = _FATBIN_ENTRY.unpack_from(data, position)
        if not header:
            return
        if kind in (_PTX, _CUBIN) and 10 < arch < 1000:
            suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
            yield Architecture(arch // 10, arch % 10, suffix, kind == _PTX)
        position += header + size


def _nvshmem_device(data: mmap.mmap, sections: list[_Section]) -> str | None:
    for section in sections:
        if section.kind != _SHT_SYMTAB:
            continue
        names = sections[section.link].offset
        if data.find(b"nvshmemi_device_lib_version", names, names + sections[section.link].size) < 0:
            continue
        for name, _, _, index, address, size in struct.iter_unpack(
            "<IBBHQQ", data[section.offset : section.offset + section.size]
        ):
            if size != 12 or not 0 < index < len(sections) or not _NVSHMEM_DEVICE.match(_text(data, names + name)):
                continue
            home = sections[index]
            if home.kind != _SHT_NOBITS:
                return ".".join(map(str, struct.unpack_from("<3i", data, home.offset + address - home.address)))
    return None
