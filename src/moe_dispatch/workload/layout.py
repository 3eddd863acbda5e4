"""ParallelLayout: how ranks are divided among tensor, context, expert, data and pipeline parallelism.

Rank order is Megatron-Core's default `tp-cp-ep-dp-pp` (NVIDIA/Megatron-LM@d98e8a64:megatron/core/parallel_state.py,
`initialize_model_parallel`): attention uses tp x cp x dp, experts fold the same ranks of a pipeline stage into
etp x ep x edp, with the first-named dimension varying fastest.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import lcm

from moe_dispatch.core.errors import WorkloadError


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Sizes of the parallel groups, all at least 1.

    Fields:
        world: number of ranks.
        tp, cp, pp: tensor, context and pipeline parallel sizes; `vpp`: virtual stages of one pipeline rank.
        ep: expert parallel size.
        etp: expert tensor parallel size; None means `tp`, as in Megatron.
        sequence_parallel: activations between layers are split over tp; None means "when tp > 1" (Megatron requires it
            for MoE with tp > 1 in training).

    Raises:
        WorkloadError: a size below 1, or ranks that do not divide into the groups.
    """

    world: int
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    sequence_parallel: bool | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if (
                name != "sequence_parallel"
                and value is not None
                and (isinstance(value, bool) or not isinstance(value, int))
            ):
                raise WorkloadError(f"layout: {name}={value!r} is not an integer")
            if name != "sequence_parallel" and value is not None and value < 1:
                raise WorkloadError(f"layout: {name}={value} must be at least 1")
        for label, size in (("TP x CP x PP", self.tp * self.cp * self.pp), ("ETP x EP x PP", self.expert_block)):
            if self.world % size:
                raise WorkloadError(
                    f"layout: {label} = {size} does not divide the {self.world} ranks",
                    f"use a multiple of {self.smallest_world(**self._sizes())} ranks, or smaller parallel sizes",
                )

    @classmethod
    def smallest_world(cls, *, tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1, etp: int | None = None) -> int:
        """Fewest ranks on which both the attention and the expert layout fit."""
        return pp * lcm(tp * cp, (tp if etp is None else etp) * ep)

    def _sizes(self) -> dict[str, int]:
        return {"tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep, "etp": self.expert_tp}

    @property
    def expert_block(self) -> int:
        """ETP x EP x PP: ranks that one replica of the expert layout takes."""
        return self.expert_tp * self.ep * self.pp

    @property
    def expert_tp(self) -> int:
        """Expert tensor parallel size with Megatron's default (tp) filled in."""
        return self.tp if self.etp is None else self.etp

    @property
    def uses_sequence_parallel(self) -> bool:
        """Whether each tensor-parallel rank holds only its part of the sequence between layers."""
        return self.tp > 1 if self.sequence_parallel is None else self.sequence_parallel

    @property
    def dp(self) -> int:
        """Data parallel size of attention and dense layers."""
        return self.world // (self.tp * self.cp * self.pp)

    @property
    def edp(self) -> int:
        """Expert data parallel size: replicas of each expert."""
        return self.world // self.expert_block

    def tokens_per_rank(self, seq_length: int, micro_batch: int) -> int:
        """Tokens that one rank routes in one micro-batch: seq * mbs / cp / (tp with sequence parallelism, else 1).

        Raises:
            WorkloadError: the sequence does not divide.
        """
        parts = self.cp * (self.tp if self.uses_sequence_parallel else 1)
        if seq_length % parts:
            raise WorkloadError(
                f"sequence length {seq_length} does not divide over CP={self.cp} and TP={self.tp}",
                f"use a multiple of {parts}",
            )
        return seq_length // parts * micro_batch

    def micro_batches(self, global_batch: int, micro_batch: int) -> int:
        """Micro-batches of one step on each data-parallel replica.

        Raises:
            WorkloadError: the global batch is not a multiple of mbs x dp.
        """
        if global_batch % (micro_batch * self.dp):
            raise WorkloadError(
                f"global batch {global_batch} is not a multiple of micro batch {micro_batch} x DP {self.dp}",
                f"use a multiple of {micro_batch * self.dp}",
            )
        return global_batch // (micro_batch * self.dp)

    def ep_group(self, rank: int) -> tuple[int, ...]:
        """Global ranks of the EP group that `rank` belongs to, in expert order (member i owns experts i*E/EP...).

        Raises:
            WorkloadError: rank outside 0..world-1.
        """
        if not 0 <= rank < self.world:
            raise WorkloadError(f"rank {rank} is outside 0..{self.world - 1}")
        block = self.expert_tp * self.ep
        first = rank // block * block + rank % self.expert_tp
        return tuple(range(first, first + block, self.expert_tp))

    def ep_groups(self) -> tuple[tuple[int, ...], ...]:
        """All EP groups, each once, ordered by their first rank."""
        return tuple(sorted({self.ep_group(rank) for rank in range(self.world)}))

    def ep_ranks_per_domain(self, ranks_per_domain: int) -> int:
        """Members of one EP group inside one domain of `ranks_per_domain` consecutive global ranks.

        Raises:
            WorkloadError: groups are spread unevenly over domains.
        """
        counts: set[int] = set()
        for group in self.ep_groups():
            domains = [rank // ranks_per_domain for rank in group]
            counts.update(domains.count(domain) for domain in set(domains))
        if len(counts) != 1:
            raise WorkloadError(
                f"EP groups do not spread evenly over domains of {ranks_per_domain} ranks (members per domain: "
                f"{', '.join(map(str, sorted(counts)))})",
                "choose EP x ETP so that it divides the domain, or is a multiple of it",
            )
        return counts.pop()

    def check_experts(self, num_experts: int) -> None:
        """Refuse an EP size that does not divide the experts.

        Raises:
            WorkloadError: with the sizes that would.
        """
        if num_experts % self.ep:
            fits = [str(size) for size in range(1, num_experts + 1) if num_experts % size == 0 and size <= 4 * self.ep]
            raise WorkloadError(
                f"EP={self.ep} does not divide the {num_experts} experts", f"use one of EP = {', '.join(fits)}"
            )
