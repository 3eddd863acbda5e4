"""`moe-dispatch hardware`: the hardware catalogue, a declared site, and what this machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moe_dispatch.cli.output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from moe_dispatch.site.model import Site


def hardware(
    name: Annotated[str | None, typer.Argument(help="Show this entry in full.")] = None,
    here: Annotated[bool, typer.Option("--here", help="Show what this machine is instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the hardware catalogue, or what this machine is.

    Figures are nominal: dense peaks, and one direction of one GPU in 1e9 bytes per second.
    """
    if here:
        from moe_dispatch.core.errors import UsageError
        from moe_dispatch.site.probe import probe

        if name is not None:
            raise UsageError(f"--here shows this machine, not {name!r}", "leave one of them out")
        site = probe()
        print_json(site) if as_json else _show_site(site)
        return
    from moe_dispatch.site.hardware import find_hardware, load_hardware

    if name is not None:
        entry = find_hardware(name)
        if as_json:
            print_json(entry)
        else:
            print_table(("field", "value"), [(key, _plain(value)) for key, value in entry.model_dump().items()])
        return
    entries = load_hardware().values()
    if as_json:
        print_json(list(entries))
        return
    headings = ("name", "GPUs/node", "NVLink domain", "GB", "SMs", "bf16 TFLOP/s", "fp8", "link GB/s", "NIC GB/s")
    rows = [
        (
            entry.name,
            entry.gpus_per_node,
            entry.nvlink_domain,
            f"{entry.memory_gb:g}",
            entry.sms,
            f"{entry.bf16_tflops:g}",
            f"{entry.fp8_tflops:g}" if entry.fp8_tflops else "",
            f"{entry.link_gbytes_per_s:g}",
            f"{entry.nic_gbytes_per_s:g}",
        )
        for entry in entries
    ]
    print_table(headings, rows)


def _show_site(site: Site) -> None:
    print(site.summary)
    rows = {
        "processor": site.cpu_model,
        "driver, CUDA": ", ".join(text for text in (site.driver, site.cuda) if text),
        "container": " ".join(text for text in (site.container.runtime, site.container.image) if text)
        if site.container
        else "",
        "scheduler": _scheduler(site),
        "NVLink partition": site.domain_of() if site.is_multi_node_nvlink else "",
        "IMEX channels": str(len(site.imex_channels)) if site.imex_channels else "",
        "GPU memory modules": ", ".join(site.kernel_modules),
        "CUDA compiler": site.nvcc,
        "not probed": "; ".join(site.notes),
    }
    print_table(("host", ""), [(name, value) for name, value in rows.items() if value])
    if site.gpus:
        _show_gpus(site)
    if site.nics:
        headings = ("adapter", "kind", "Gbit/s", "up", "NUMA", "PCI", "model", "interfaces")
        rows_of_nics = [
            (
                nic.name,
                nic.kind,
                "?" if nic.rate_gbps is None else f"{nic.rate_gbps:g}",
                "yes" if nic.active else "no",
                "?" if nic.numa_node is None else nic.numa_node,
                nic.pci,
                nic.model or nic.driver,
                ", ".join(nic.interfaces),
            )
            for nic in site.nics
        ]
        print_table(headings, rows_of_nics)


def _show_gpus(site: Site) -> None:
    headings = ("GPU", "name", "cc", "SMs", "GiB", "links", "NUMA", "CPUs", "near adapters", "fabric")
    rows = [
        (
            gpu.index,
            f"{gpu.name} (MIG)" if gpu.mig else gpu.name,
            gpu.capability or "?",
            gpu.sms or "?",
            "?" if gpu.memory_bytes is None else f"{gpu.memory_bytes / 2**30:.0f}",
            " ".join(gpu.links) or "?",
            "?" if gpu.numa_node is None else gpu.numa_node,
            gpu.cpus or "?",
            ", ".join(gpu.nics) or "none",
            gpu.fabric.state.replace("_", " ") if gpu.fabric else "?",
        )
        for gpu in site.gpus
    ]
    print_table(headings, rows)


def _scheduler(site: Site) -> str:
    seen = site.scheduler
    if seen is None or seen.kind == "none":
        return ""
    sizes = {"nodes": seen.nodes, "ranks": seen.ranks, "ranks per node": seen.ranks_per_node}
    told = ", ".join(f"{value} {name}" for name, value in sizes.items() if value is not None)
    return " ".join(part for part in (seen.kind, seen.job, f"({told})" if told else "") if part)


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
