"""What nvidia-smi prints, as GPUs: comma separated values, the XML report and the matrix of `topo -m`.

Three calls at once under one time limit; each that fails or prints something else leaves its values unknown.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

from moe_dispatch.site.devices import FabricState, Gpu, GpuFabric
from moe_dispatch.site.pci import pci_address
from moe_dispatch.site.probe_run import number, run_limited
from moe_dispatch.site.probed import ProbedGpus

FIELDS = ("index", "name", "uuid", "pci.bus_id", "memory.total", "driver_version", "compute_cap", "mig.mode.current")
OLD_FIELDS = FIELDS[:6]
"""What drivers before 510 know too."""

_UNKNOWN = re.compile(r"\[?(n/?a|not supported|unknown error|insufficient permissions|gpu is lost)\]?|", re.IGNORECASE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STATES: dict[str, FabricState] = {
    "completed": "completed",
    "inprogress": "in_progress",
    "notstarted": "not_started",
    "notsupported": "not_supported",
    "n/a": "not_supported",
}
_GOOD = frozenset({"", "n/a", "false", "full", "healthy", "none", "notsupported"})


def query_command(fields: tuple[str, ...]) -> tuple[str, ...]:
    """The call that prints `fields` of every GPU."""
    return ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")


def probe_smi(timeout_s: float) -> ProbedGpus:
    """All GPUs that nvidia-smi knows; none when it is absent, fails or hangs."""
    commands = (query_command(FIELDS), ("nvidia-smi", "-q", "-x"), ("nvidia-smi", "topo", "-m"))
    with ThreadPoolExecutor(max_workers=len(commands)) as pool:
        rows, report, matrix = pool.map(lambda command: run_limited(command, timeout_s), commands)
    if rows is not None:
        found = parse_query(rows, FIELDS)
    elif report is not None:  # the tool works, so the driver does not know one of the fields
        found = parse_query(run_limited(query_command(OLD_FIELDS), timeout_s) or "", OLD_FIELDS)
    else:
        return ProbedGpus()
    return add_matrix(add_report(found, report or ""), matrix or "")


def parse_query(text: str, fields: tuple[str, ...]) -> ProbedGpus:
    """The GPUs in lines of comma separated values; lines with another number of values are skipped."""
    gpus, driver = [], None
    for line in text.splitlines():
        values = dict(zip(fields, (_known(value) for value in line.split(",")), strict=False))
        if line.count(",") != len(fields) - 1 or not values["name"] or number(values["index"]) is None:
            continue
        memory = number(values["memory.total"])
        driver = driver or values["driver_version"] or None
        gpus.append(
            Gpu(
                index=int(values["index"]),
                name=values["name"],
                uuid=values["uuid"],
                pci=pci_address(values["pci.bus_id"]),
                memory_bytes=memory * 2**20 if memory is not None else None,
                capability=values.get("compute_cap") or None,
                mig=values.get("mig.mode.current") == "Enabled",
            )
        )
    return ProbedGpus(gpus=tuple(gpus), driver=driver)


def add_report(found: ProbedGpus, text: str) -> ProbedGpus:
    """Fabric registration and CUDA version out of the XML report."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return found
    fabrics = {pci_address(node.get("id", "")): _fabric(node.find("fabric")) for node in root.iter("gpu")}
    gpus = tuple(gpu.model_copy(update={"fabric": fabrics.get(gpu.pci)}) for gpu in found.gpus)
    return ProbedGpus(gpus=gpus, driver=found.driver, cuda=_known(root.findtext("cuda_version", "")) or None)


def add_matrix(found: ProbedGpus, text: str) -> ProbedGpus:
    """Links between GPUs out of `topo -m`: one row for each GPU, one column for each GPU and adapter."""
    lines = [_ANSI.sub("", line).split("\t") for line in text.splitlines()]
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines if cells[0].strip()}
    heading = next(([cell.strip() for cell in cells[1:]] for cells in lines if not cells[0].strip()), [])
    columns = [place for place, name in enumerate(heading) if re.fullmatch(r"GPU\d+", name)]
    gpus = []
    for gpu in found.gpus:
        row = rows.get(f"GPU{gpu.index}", [])
        links = tuple(row[place] for place in columns if place < len(row)) if len(columns) == len(found.gpus) else ()
        lanes = max((int(link[2:]) for link in links if re.fullmatch(r"NV\d+", link)), default=None)
        gpus.append(gpu.model_copy(update={"links": links, "nvlinks": lanes}))
    return ProbedGpus(gpus=tuple(gpus), driver=found.driver, cuda=found.cuda)


def _fabric(node: ElementTree.Element | None) -> GpuFabric | None:
    if node is None:
        return None
    texts = {_plain(child.tag): (child.text or "").strip() for child in node}
    health = node.find("health")
    complaints = tuple(
        f"{child.tag.replace('_', ' ')} {(child.text or '').strip().lower()}"
        for child in (health if health is not None else ())
        if _plain(child.text or "") not in _GOOD
    )
    return GpuFabric(
        state=_STATES.get(_plain(texts.get("state", "")), "unknown"),
        status=_known(texts.get("status", "")).lower(),
        cluster=_known(texts.get("clusteruuid", "")).lower(),
        clique=number(texts.get("cliqueid", "")),
        problems=complaints,
    )


def _plain(text: str) -> str:
    return re.sub(r"[\s_]+", "", text).lower()


def _known(text: str) -> str:
    """A value, empty when nvidia-smi says that there is none."""
    text = text.strip()
    return "" if _UNKNOWN.fullmatch(text) else text
