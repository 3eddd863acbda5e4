"""Checks on HybridEP."""

from __future__ import annotations

from collections.abc import Iterator

from moe_dispatch.megatron.rules.job import Job
from moe_dispatch.megatron.rules.registry import Hit, rule
from moe_dispatch.megatron.rules.signs import is_set, uneven_lengths
from moe_dispatch.megatron.settings import UnknownSetting

PAD_FIELD = "moe_hybridep_pad_uneven_dispatch_inputs"
OLDER_PAD_FIELD = "moe_hybridep_pad_variable_tokens"
TOKEN_MULTIPLE = 64
"""HYBRIDEP_TOKEN_ALIGNMENT in Megatron-Core, and the default chunk of the kernels."""
HARD_MULTIPLE = 4
HIDDEN_MULTIPLE = 16
_CHUNKS = tuple(f"NUM_OF_TOKENS_PER_CHUNK_{kind}_API" for kind in ("DISPATCH", "COMBINE", "PREPROCESSING"))
_CAPTURES_DISPATCH = ("moe", "moe_router", "moe_preprocess")


def pads(job: Job) -> bool:
    """Whether uneven inputs are padded: by the field, or by Bridge, which sets it for eager HybridEP."""
    given = job.config.given(PAD_FIELD) or job.config.given(OLDER_PAD_FIELD)
    if given is not None and given.value is True:
        return True
    if job.config.is_bridge and job.config.stage == "requested":
        return job.graph_impl == "none"
    if job.core < (0, 19):
        return False
    return job.on(PAD_FIELD)


@rule("hybridep-uneven-local-tokens")
def uneven_tokens(job: Job) -> Iterator[Hit]:
    """A sign of variable lengths, and no padding."""
    if not job.runs("hybridep"):
        return
    sign = uneven_lengths(job)
    if sign and not pads(job):
        yield Hit({"sign": sign, "field": PAD_FIELD})


@rule("hybridep-token-alignment")
def token_alignment(job: Job) -> Iterator[Hit]:
    """A fixed token count that the kernels cannot cut into chunks."""
    if not job.runs("hybridep"):
        return
    tokens = job.tokens
    if tokens % TOKEN_MULTIPLE and not _pads_to_chunks(job):
        padded = tokens + -tokens % TOKEN_MULTIPLE
        hard = f", nor of {HARD_MULTIPLE}" if tokens % HARD_MULTIPLE else ""
        yield Hit({"tokens": tokens, "multiple": TOKEN_MULTIPLE, "hard": hard, "padded": padded})


def _pads_to_chunks(job: Job) -> bool:
    """The padding of uneven inputs rounds up to the multiple, where the release has it."""
    return job.core >= (0, 19) and pads(job)


@rule("hybridep-padding-in-graph")
def padding_in_graph(job: Job) -> Iterator[Hit]:
    """The padding synchronises with the host."""
    given = job.config.given(PAD_FIELD)
    if not job.runs("hybridep") or given is None or given.value is not True or job.graph_impl == "none":
        return
    captured = [name for name in _CAPTURES_DISPATCH if name in job.graph_modules]
    if job.graph_impl == "full_iteration" or not job.graph_modules:
        captured = ["the MoE layer"]
    if captured:
        yield Hit({"field": PAD_FIELD, "what": ", ".join(captured)})


@rule("hybridep-hidden-alignment")
def hidden_alignment(job: Job) -> Iterator[Hit]:
    """Width of a dispatched row: the latent size where there is one."""
    if not job.runs("hybridep"):
        return
    latent = job.number("moe_latent_size")
    field, width = ("moe_latent_size", latent) if latent else ("hidden_size", job.number("hidden_size"))
    if width and width % HIDDEN_MULTIPLE:
        yield Hit({"field": field, "hidden": width})


@rule("hybridep-experts-alignment")
def experts_alignment(job: Job) -> Iterator[Hit]:
    """Experts of one domain come in fours."""
    if not job.runs("hybridep"):
        return
    experts, inside = job.number("num_moe_experts"), _inside(job)
    if experts is None or experts % job.ep:
        return
    local = int(experts) // job.ep
    if local * inside % 4:
        yield Hit({"local": local, "inside": inside, "product": local * inside})


def _inside(job: Job) -> int:
    """Ranks of a group in one NVLink domain."""
    domain = job.site.nvlink_domain if job.site else None
    if domain is None:
        if job.group <= 4:
            return job.group
        raise UnknownSetting("NVLink domain")
    return min(job.group, domain)


@rule("hybridep-fused-chunks-differ")
def fused_chunks(job: Job) -> Iterator[Hit]:
    """Identical chunk sizes; the library's default stands for one that is not set."""
    if not job.runs("hybridep") or not job.on("moe_permute_fusion_into_hybridep"):
        return
    given = {name: job.config.env[name] for name in _CHUNKS if name in job.config.env}
    sizes = set(given.values()) | ({str(TOKEN_MULTIPLE)} if len(given) < len(_CHUNKS) else set())
    if len(sizes) > 1:
        default = f" and {TOKEN_MULTIPLE} by default" if len(given) < len(_CHUNKS) else ""
        yield Hit({"sizes": ", ".join(f"{name}={value}" for name, value in given.items()) + default})


@rule("hybridep-fused-permute-may-degrade")
def fused_may_degrade(job: Job) -> Iterator[Hit]:
    """An old package runs unfused."""
    names = ("moe_permute_fusion_into_hybridep", "moe_hybridep_num_blocks_permute", "moe_hybridep_num_blocks_unpermute")
    given = [name for name in names if is_set(job, name)]
    if given and job.runs("hybridep"):
        yield Hit({"fields": ", ".join(given)})


@rule("hybridep-needs-multinode-build")
def multinode_build(job: Job) -> Iterator[Hit]:
    """The group crosses domains."""
    if job.runs("hybridep"):
        inside = _inside(job)
        if job.group > inside:
            yield Hit({"group": job.group, "domains": -(-job.group // inside)})
