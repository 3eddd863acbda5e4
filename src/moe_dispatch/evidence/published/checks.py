"""What a row of published evidence must satisfy by arithmetic alone. What does not fit stays, with its finding.

Each check yields one `Misfit` with the numbers, and nothing where the row does not state enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.evidence.published.rows import Misfit, Row, Settings, TrainingRow
from moe_dispatch.site.hardware import load_hardware
from moe_dispatch.workload.catalogue import CatalogueEntry, list_models
from moe_dispatch.workload.flops import model_flops_per_step

ROUNDING = 0.01
"""Two published figures of three digits may differ by 0.5 % each before they contradict one another."""
FLOPS_TOLERANCE = 0.03
"""`ROUNDING` and at most 2 % for what frameworks count differently (vocabulary padding, router, norms)."""
PEAK_FACTORS = {"bf16": 1, "fp8": 2, "nvfp4": 6}
"""Dense peak over that of BF16, at most: FP8 twice; NVFP4 four times on B200-class GPUs and six on B300-class."""
FRACTIONS = ("mfu", "communication_hidden")


def check_numbers(row: Row) -> Iterator[Misfit]:
    """Every number is positive (FSDP and MTP may be 0), and every fraction at most 1."""
    for each in fields(row):
        value = getattr(row, each.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value < 0 or (value == 0 and each.name not in ("fsdp", "mtp_layers")):
            yield Misfit(check="number", detail=f"{each.name} = {value} must be positive")
        if each.name in FRACTIONS and value > 1:
            yield Misfit(check="number", detail=f"{each.name} = {value} is a fraction and must be at most 1")


def check_layout(row: Settings) -> Iterator[Misfit]:
    """TP x CP x PP and ETP x EP x PP divide the GPUs; EP divides the experts; the batch divides."""
    if row.gpus and row.tp and row.pp:
        dense = row.tp * row.pp * (row.cp or 1)
        if row.gpus % dense:
            yield Misfit(check="layout", detail=f"TP x CP x PP = {dense} does not divide {row.gpus} GPUs")
        elif row.global_batch and row.micro_batch and row.global_batch % (row.micro_batch * (row.gpus // dense)):
            parts = f"micro-batch {row.micro_batch} x DP {row.gpus // dense}"
            yield Misfit(check="batch", detail=f"global batch {row.global_batch} is no multiple of {parts}")
    if row.gpus and row.ep and row.pp:
        experts = (row.etp or 1) * row.ep * row.pp
        if row.gpus % experts:
            yield Misfit(check="layout", detail=f"ETP x EP x PP = {experts} does not divide {row.gpus} GPUs")
    entry = catalogue_entry(row.model)
    if entry and row.ep and entry.num_experts % row.ep:
        yield Misfit(check="experts", detail=f"EP {row.ep} does not divide {entry.num_experts} experts")


def check_tokens(row: TrainingRow) -> Iterator[Misfit]:
    """Step time, batch and sequence give the published tokens per second, of a GPU and of all."""
    if not (row.step_time_s and row.global_batch and row.seq_length):
        return
    total = row.global_batch * row.seq_length / row.step_time_s
    if row.tokens_per_s and _apart(row.tokens_per_s, total, ROUNDING):
        yield Misfit(check="tokens", detail=f"tokens_per_s {row.tokens_per_s:g}, but step time gives {total:.0f}")
    if row.tokens_per_s_per_gpu and row.gpus and _apart(row.tokens_per_s_per_gpu, total / row.gpus, ROUNDING):
        given = f"tokens_per_s_per_gpu {row.tokens_per_s_per_gpu:g}"
        yield Misfit(check="tokens", detail=f"{given}, but step time gives {total / row.gpus:.0f}")


def check_flops(row: TrainingRow) -> Iterator[Misfit]:
    """TFLOP/s x step time x GPUs gives the model FLOPs of a step as Megatron-LM counts them."""
    entry = catalogue_entry(row.model)
    if entry is None or entry.shape is None or row.measured != "train_step":
        return
    if not (row.tflops_per_gpu and row.step_s and row.gpus and row.global_batch and row.seq_length):
        return
    try:
        flops = model_flops_per_step(entry.shape, row.seq_length, row.global_batch, mtp_layers=row.mtp_layers)
    except WorkloadError:
        return
    ratio = row.tflops_per_gpu * 1e12 * row.step_s * row.gpus / flops
    if abs(ratio - 1) > FLOPS_TOLERANCE:
        which = "step time" if row.step_time_s else "tokens/s"
        yield Misfit(
            check="flops",
            detail=f"TFLOP/s and {which} give {ratio:.3f} of the model's FLOPs: counted otherwise, another shape, or "
            "sequences that are not full",
        )


def check_peak(row: TrainingRow) -> Iterator[Misfit]:
    """Throughput is below the GPU's peak, and the MFU is their ratio."""
    hardware = load_hardware().get(row.hardware)
    if hardware is None or row.tflops_per_gpu is None or row.precision is None:
        return
    peak = hardware.bf16_tflops * PEAK_FACTORS[row.precision.split("_")[0]]
    if row.tflops_per_gpu > peak:
        yield Misfit(check="peak", detail=f"{row.tflops_per_gpu:g} TFLOP/s is above the peak of {peak:g}")
    used = row.tflops_per_gpu / peak
    if row.mfu and not row.precision.startswith("nvfp4") and _apart(row.mfu, used, FLOPS_TOLERANCE):
        yield Misfit(
            check="mfu", detail=f"MFU {row.mfu:g}, but {row.tflops_per_gpu:g} of {peak:g} TFLOP/s is {used:.3f}"
        )


def check_memory(row: TrainingRow) -> Iterator[Misfit]:
    """Peak memory fits the GPU."""
    hardware = load_hardware().get(row.hardware)
    if hardware and row.peak_memory_bytes and row.peak_memory_bytes > hardware.memory_gb * 1e9:
        used = row.peak_memory_bytes / 1e9
        yield Misfit(check="memory", detail=f"{used:.1f} GB is more than the GPU's {hardware.memory_gb:g} GB")


def catalogue_entry(model: str) -> CatalogueEntry | None:
    """The catalogue's entry of a model, None where it has none."""
    return next((entry for entry in list_models() if model in (entry.name, *entry.aliases)), None)


def _apart(one: float, other: float, tolerance: float) -> bool:
    return abs(one / other - 1) > tolerance
