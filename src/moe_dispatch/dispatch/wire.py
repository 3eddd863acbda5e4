"""Point-to-point rounds between the ranks of one group, the way each back end of torch.distributed likes them.

gloo: every receive is posted before any send and each message completes by itself; sends first can leave one direction
of a pair's socket idle (docs/two_nodes.md). NCCL: one group call a round, so that sends and receives of a round
progress together. Tensors on a device that gloo cannot send travel through host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

_SEQUENCE_BITS, _KIND_BITS, _CHUNK_BITS = 10, 4, 16
# By object, not by name: a group made anew after a failure has its old name, but not the same count on every rank.
_calls_of_group: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Message:
    """One tensor to or from `peer` (group rank). Both ends must agree on shape, dtype, kind and chunk."""

    tensor: torch.Tensor
    peer: int
    kind: int
    chunk: int = 0


@dataclass
class Arrival:
    """A posted receive; `wait` returns when its tensor is filled (for CUDA: on the current stream)."""

    work: dist.Work
    target: torch.Tensor
    staged: torch.Tensor | None = None
    done: bool = False

    def wait(self) -> None:
        """Block until the data is there; a second call does nothing."""
        if self.done:
            return
        self.work.wait()
        if self.staged is not None:
            self.target.copy_(self.staged)
        self.done = True


@dataclass
class Wire:
    """All messages of one exchange (one dispatch or one combine) over `group`; creating it counts as one collective
    call.

    Raises from `wait`: RuntimeError of the back end when a peer died or the group's time-out passed.
    """

    group: dist.ProcessGroup
    _sends: list[tuple[dist.Work, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sequence = _calls_of_group[self.group] = _calls_of_group.get(self.group, -1) + 1
        self.grouped = dist.get_backend(self.group) == "nccl"

    def _tag(self, message: Message) -> int:
        sequence = self._sequence & ((1 << _SEQUENCE_BITS) - 1)
        return (sequence << (_KIND_BITS + _CHUNK_BITS)) | (message.kind << _CHUNK_BITS) | message.chunk

    def receive(self, message: Message) -> Arrival:
        """Post one receive now (not for NCCL: use `exchange`)."""
        staged = None if message.tensor.device.type == "cpu" else torch.empty_like(message.tensor, device="cpu")
        target = message.tensor if staged is None else staged
        work = dist.irecv(target, group=self.group, group_src=message.peer, tag=self._tag(message))
        assert work is not None
        return Arrival(work, message.tensor, staged)

    def send(self, message: Message) -> None:
        """Post one send now; the tensor must stay unchanged until `drain` (not for NCCL: use `exchange`)."""
        tensor = message.tensor if message.tensor.device.type == "cpu" else message.tensor.cpu()
        work = dist.isend(tensor, group=self.group, group_dst=message.peer, tag=self._tag(message))
        assert work is not None
        self._sends.append((work, tensor))

    def exchange(self, receives: Sequence[Message], sends: Sequence[Message]) -> list[Arrival]:
        """Post a whole round: all receives, then all sends; one group call under NCCL. Empty tensors must not be
        passed.
        """
        if not self.grouped:
            arrivals = [self.receive(message) for message in receives]
            for message in sends:
                self.send(message)
            return arrivals
        ops = [dist.P2POp(dist.irecv, m.tensor, group=self.group, group_peer=m.peer) for m in receives]
        ops += [dist.P2POp(dist.isend, m.tensor, group=self.group, group_peer=m.peer) for m in sends]
        works = dist.batch_isend_irecv(ops) if ops else []
        for work in works:
            self._sends.append((work, torch.empty(0)))
        return [_GroupArrival(works, message.tensor) for message in receives]

    def drain(self) -> None:
        """Wait until every send has left its buffer."""
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()


class _GroupArrival(Arrival):
    """A receive inside an NCCL group call: all works of the round are waited for (they share one)."""

    def __init__(self, works: list[dist.Work], target: torch.Tensor) -> None:
        super().__init__(works[0], target)
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()
