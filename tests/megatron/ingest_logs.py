"""Training logs in the frameworks' own formats, with numbers of our own, and the real ones.

Formats: NVIDIA/Megatron-LM@d98e8a64:megatron/training/training.py and arguments.py,
NVIDIA-NeMo/Megatron-Bridge@067f987d:src/megatron/bridge/training/utils/train_utils.py and config.py. `logs/` holds logs
of two ranks on one H200 (their paths replaced).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from moe_dispatch.evidence.record import RunRecord
from moe_dispatch.megatron.ingest.records import record_of
from moe_dispatch.megatron.ingest.run import Run, RunRequest, read_run

LOGS = Path(__file__).parent / "logs"
START = datetime(2026, 8, 22, 10, 15, 0)

ARGUMENTS: dict[str, Any] = {
    "bf16": True,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 8,
    "expert_tensor_parallel_size": 1,
    "fp16": False,
    "fp8": None,
    "global_batch_size": 16,
    "group_query_attention": True,
    "hidden_size": 256,
    "kv_channels": 64,
    "log_interval": 1,
    "micro_batch_size": 1,
    "mock_data": False,
    "moe_enable_deepep": False,
    "moe_ffn_hidden_size": 128,
    "moe_flex_dispatcher_backend": "deepep",
    "moe_flex_dispatcher_num_sms": None,
    "moe_layer_freq": 1,
    "moe_router_force_load_balancing": True,
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "alltoall",
    "num_attention_heads": 4,
    "num_experts": 16,
    "num_layers": 2,
    "num_query_groups": 2,
    "pipeline_model_parallel_size": 1,
    "recompute_granularity": None,
    "seq_length": 128,
    "sequence_parallel": False,
    "swiglu": True,
    "tensor_model_parallel_size": 1,
    "train_iters": 10,
    "vocab_size": 1000,
    "world_size": 8,
}


def real(name: str) -> Path:
    """One of the real logs."""
    return LOGS / f"{name}.log.gz"


def real_text(name: str) -> str:
    return gzip.decompress(real(name).read_bytes()).decode()


def iteration(
    number: int,
    planned: int = 10,
    *,
    elapsed_ms: float | None = None,
    loss: float | None = 8.0,
    norm: str | None = "1.000",
    skipped: int = 0,
    nan: int = 0,
    tflops: float | None = None,
    at: float | None = None,
    stamp: str = "%Y-%m-%d %H:%M:%S.%f",
) -> str:
    """One iteration line; by default iteration N takes 100 + N ms and ends N seconds after the start."""
    elapsed = 100.0 + number if elapsed_ms is None else elapsed_ms
    when = START + timedelta(seconds=float(number) if at is None else at)
    parts = [f" [{when:{stamp}}] iteration {number:8d}/{planned:8d} | consumed samples: {number * 16:12d} |"]
    parts.append(f" elapsed time per iteration (ms): {elapsed:.1f} |")
    parts.append(f" throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |" if tflops is not None else "")
    parts.append(f" learning rate: 3.000000E-04 | global batch size: {16:5d} |")
    parts.append(f" lm loss: {loss:.6E} | load_balancing_loss: 1.000000E+00 |" if loss is not None else "")
    parts.append(" loss scale: 1.0 |")
    parts.append(f" grad norm: {norm} |" if norm is not None else "")
    parts.append(f" number of skipped iterations: {skipped:3d} | number of nan iterations: {nan:3d} |")
    return "".join(parts)


def arguments(**changes: Any) -> list[str]:
    """The argument dump; a change to `...` leaves the line out."""
    values = {name: value for name, value in {**ARGUMENTS, **changes}.items() if value is not ...}
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(values.items())]
    return [
        "------------------------ arguments ------------------------",
        *lines,
        "-------------------- end of arguments ---------------------",
    ]


def memory_mib(rank: int, after: int, peak: float = 14097.41) -> str:
    return (
        f"[Rank {rank}] (after {after} iterations) memory (MB) | allocated: 8918.25 | max allocated: {peak:.2f} | "
        f"reserved: 15294.00 | max reserved: 15294.00"
    )


def megatron_lm(numbers: Iterable[int] = range(1, 11), *, planned: int = 10, **changes: Any) -> list[str]:
    """A whole log of Megatron-LM."""
    return [
        "> PyTorch version ................ 2.11.0+cu130",
        "> Megatron-Core version .......... 0.20.0",
        *arguments(train_iters=planned, **changes),
        "training ...",
        *(iteration(number, planned) for number in numbers),
        memory_mib(0, 1, 9000.0),
        memory_mib(0, 2),
        "[after training is done] datetime: 2026-08-22 10:15:43.123456 ",
    ]


def summary(values: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
    """Bridge's Configuration Summary."""
    ruler = "=" * 70
    lines = [
        ruler,
        "Configuration Summary (Non-Default Values vs Megatron Core)",
        ruler,
        "",
        "[model] Non-default values (vs Mcore TransformerConfig):",
        *(f"  {name}: {value!r}  (Mcore default: None)" for name, value in values.items()),
        "",
        "-" * 70,
        "Other Configuration Values:",
        "-" * 70,
        "",
    ]
    for section, fields in (others or {}).items():
        lines += [f"[{section}]:", *(f"  {name}: {value}" for name, value in fields.items()), ""]
    return [*lines, ruler]


def bridge(numbers: Iterable[int] = range(1, 11), *, planned: int = 10, **model: Any) -> list[str]:
    """A whole log of Megatron-Bridge; `model` are the non-default values of its summary."""
    lines = summary(model, {"train": {"global_batch_size": 16, "micro_batch_size": 1, "train_iters": planned}})
    for number in numbers:
        elapsed = 20000.0 + 100 * number
        lines.append(f"Step Time : {elapsed / 1e3:.2f}s GPU utilization: {300 - number:.1f}MODEL_TFLOP/s/GPU")
        lines.append(iteration(number, planned, elapsed_ms=elapsed, stamp="%Y-%m-%d %H:%M:%S"))
    lines.append("[after training is done] datetime: 2026-08-22 10:25:10 ")
    return lines


def written(folder: Path, lines: Iterable[str] | str, name: str = "run.log") -> Path:
    """A log file of these lines."""
    path = folder / name
    text = lines if isinstance(lines, str) else "\n".join(lines) + "\n"
    path.write_text(text, encoding="utf-8")
    return path


def read(*logs: Path, **request: Any) -> Run:
    return read_run(RunRequest(logs=logs, **request))


def record(*logs: Path, **request: Any) -> RunRecord:
    return record_of(read(*logs, **request))


def elapsed_of(one: RunRecord) -> dict[int, float | None]:
    """Iteration to printed milliseconds."""
    assert one.training is not None
    return {entry.iteration: entry.elapsed_ms for entry in one.training.iterations}
