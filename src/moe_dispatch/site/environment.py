"""Which environment variables are recorded with a run, and how secrets are kept out.

An allow-list decides by name; then anything that is named like a secret is dropped and anything that looks like one is
masked. What the variables do: NVIDIA/Megatron-LM@d98e8a64:megatron/training/arguments.py,
deepseek-ai/DeepEP@94a9f8f6:csrc/hybrid_ep/config.cuh and the NCCL, NVSHMEM and UCX manuals.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

PREFIXES = (
    "NCCL_",
    "GLOO_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "NVTE_",
    "NVSHMEM_",
    "NVLINK_",
    "OMP_",
    "KMP_",
    "MKL_",
    "UCX_",
    "FI_",
    "OFI_",
    "EP_",
    "DEEPEP_",
    "HYBRID_EP_",
    "HYBRIDEP_",
    "NUM_OF_",
    "UCCL_",
    "MOE_",
    "MORI_",
    "HSA_",
    "HIP_",
    "ROCR_",
    "TRITON_",
)
NAMES = frozenset(
    {
        "USE_MNNVL",
        "USE_NIXL",
        "RDMA_CORE_HOME",
        "NVIDIA_PYTORCH_VERSION",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_CPU_BIND",
        "GOMP_CPU_AFFINITY",
        "OPENBLAS_NUM_THREADS",
    }
)
"""Recorded as they are; everything under a prefix of `PREFIXES` is too."""

MASK = "***"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|BEARER|KEY", re.IGNORECASE)
_NOT_SECRET = re.compile(  # token counts, the token dispatcher's name, and a partition key, which is an index
    r"^(NUM_OF_[A-Z_]*TOKENS_PER_[A-Z_]+|MOE_(FLEX_|TOKEN_)?DISPATCHER(_TYPE|_BACKEND)?|(NCCL|UCX)_IB_PKEY)$"
)
# Repetitions in front of a fixed part are bounded: unbounded ones take quadratic time on a long line.
_MASKED_PARTS = (
    # user information of an address, up to the last @: a password may hold @, : and (though it must not) / itself
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)(?:[^\s/:@]*:\S*|[^\s/]*)@"), rf"\g<1>{MASK}@"),
    # the same without a scheme, as proxies are often given
    (re.compile(r"(?<![^\s=,;'\"])[^\s:/@=,;'\"]+:[^\s/@]+@(?=[\w\[])"), f"{MASK}@"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"), MASK),  # JSON web token
    (re.compile(r"\b(?:hf|ghp|gho|ghs|ghu|ghr|github_pat|glpat|nvapi|sk|pk|xox[abprs])[_-][A-Za-z0-9_-]{12,}"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), MASK),  # AWS access key
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\g<1> {MASK}"),
    (
        re.compile(
            r"(?i)((?:token|secret|passwo?r?d|credential|api[_-]?key|access[_-]?key)[\w-]{0,40}\s{0,8}[=:]\s{0,8})"
            r"[^\s,;&]+"
        ),
        rf"\g<1>{MASK}",
    ),
)


def is_recorded(name: str) -> bool:
    """Whether a variable of this name is recorded: on the allow-list and not named like a secret."""
    if _SECRET_NAME.search(name) and not _NOT_SECRET.match(name):
        return False
    return name in NAMES or name.startswith(PREFIXES)


def mask_secrets(text: str) -> str:
    """Replace user information of addresses, private keys and well-known token forms inside a text by `***`."""
    for pattern, replacement in _MASKED_PARTS:
        text = pattern.sub(replacement, text)
    return text


def recorded_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that may explain a measurement, sorted by name, without secrets.

    Args:
        environment: default `os.environ`.
    """
    source = os.environ if environment is None else environment
    return {name: mask_secrets(source[name]) for name in sorted(source) if is_recorded(name)}


def mask_environment_values(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Mask a program's output: token forms, and the values of all variables that are named like a secret."""
    source = os.environ if environment is None else environment
    values = [
        value
        for name, value in source.items()
        if len(value) >= 6 and _SECRET_NAME.search(name) and not _NOT_SECRET.match(name)
    ]
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return mask_secrets(text)
