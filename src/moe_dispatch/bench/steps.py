"""What one iteration runs, and the clock around it.

Exchange: dispatch, then combine of the very rows that arrived; backward through autograd for inputs and probabilities,
without the expert arithmetic that is the same for every dispatcher. Layer: router, dispatch, experts, combine, and the
backward pass of all of it with gradients accumulated in place. Shape legend as in `dispatch/base.py`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import torch

from moe_dispatch.bench.plan import BenchPlan
from moe_dispatch.dispatch.base import Dispatcher
from moe_dispatch.moe.layer import MoELayer
from moe_dispatch.workload.routing import RoutingSpec, generate, generate_logits

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Step(ABC):
    """One iteration's work; `forward` and `backward` are collective over the dispatcher's group."""

    def __init__(self, ids_TK: torch.Tensor) -> None:
        self.ids = ids_TK

    @abstractmethod
    def forward(self, dispatcher: Dispatcher) -> None:
        """Run forward and keep what backward needs."""

    @abstractmethod
    def backward(self) -> None:
        """Run backward and let go of everything that forward kept."""


class ExchangeStep(Step):
    """Dispatch and combine.

    Args:
        tokens: T on this rank.
        rank: decides routing and data together with the plan's seed.
    """

    def __init__(self, plan: BenchPlan, routing: str, tokens: int, rank: int, device: torch.device) -> None:
        shape = plan.model
        ids, probs = generate(
            RoutingSpec.parse(routing),
            tokens,
            shape.num_experts,
            shape.topk,
            plan.seed,
            rank,
            shape.router.num_groups,
            shape.router.group_topk,
        )
        super().__init__(torch.from_numpy(ids).to(device))
        self._probs_TK = torch.from_numpy(probs).to(device).requires_grad_()
        dtype = DTYPES[plan.dtype]
        self._x_TH = _normal(tokens, shape.dispatch_width, plan.seed, rank, dtype, device).requires_grad_()
        self._grad_TH = _normal(tokens, shape.dispatch_width, plan.seed + 1, rank, dtype, device)
        self._grad_R = torch.empty(0, device=device)
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, dispatcher: Dispatcher) -> None:
        """See `Step.forward`."""
        sent = dispatcher.dispatch(self._x_TH, self.ids, self._probs_TK)
        out_TH = dispatcher.combine(sent.x_RH, sent.state)
        if self._grad_R.shape != sent.probs_R.shape:
            self._grad_R = torch.ones_like(sent.probs_R)
        self._kept = (out_TH, sent.probs_R)

    def backward(self) -> None:
        """See `Step.backward`; gradients are returned by autograd, not accumulated, as an activation's would be."""
        assert self._kept is not None
        torch.autograd.grad(self._kept, (self._x_TH, self._probs_TK), (self._grad_TH, self._grad_R))
        self._kept = None


class LayerStep(Step):
    """A whole MoE layer; one layer (weights, gradients) serves every arm, only its dispatcher is swapped."""

    def __init__(self, plan: BenchPlan, layer: MoELayer, routing: str, tokens: int, rank: int) -> None:
        shape = plan.model
        device, dtype = layer.dispatcher.device, DTYPES[plan.dtype]
        self._layer = layer
        layer.experts.accumulate_in_place = True
        self._x_TH = _normal(tokens, shape.hidden, plan.seed, rank, dtype, device).requires_grad_()
        self._grad_TH = _normal(tokens, shape.hidden, plan.seed + 1, rank, dtype, device)
        for tensor in (self._x_TH, *layer.parameters()):
            if tensor.grad is None:
                # In place before any arm is measured, so that none of them is charged for the gradients.
                tensor.grad = torch.empty_like(tensor).zero_()
        self._logits_TE: torch.Tensor | None = None
        self._forced_TK: torch.Tensor | None = None
        spec = RoutingSpec.parse(routing)
        sizes = (tokens, shape.num_experts, shape.topk, plan.seed, rank)
        trace = spec.load_trace()
        if trace is not None and trace.expert_ids is not None:
            self._forced_TK = torch.from_numpy(generate(spec, *sizes)[0]).to(device)
        else:
            self._logits_TE = torch.from_numpy(generate_logits(spec, *sizes)).to(device)
        with torch.no_grad():
            super().__init__(layer.router(self._x_TH, self._logits_TE, self._forced_TK).expert_ids_TK)
        self._out_TH: torch.Tensor | None = None

    def forward(self, dispatcher: Dispatcher) -> None:
        """See `Step.forward`."""
        self._layer.dispatcher = dispatcher
        self._out_TH = self._layer(self._x_TH, self._logits_TE, self._forced_TK)

    def backward(self) -> None:
        """See `Step.backward`; gradients are added to in place."""
        assert self._out_TH is not None
        self._out_TH.backward(self._grad_TH)
        self._out_TH = None


class Clock:
    """Times one iteration on this rank: wall clock on a CPU, stream events on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def run(self, step: Step, dispatcher: Dispatcher) -> tuple[float, float, float]:
        """(forward, backward, total) in microseconds. The caller lines the ranks up first."""
        if self._device.type == "cuda":
            return self._run_cuda(step, dispatcher)
        start = time.perf_counter()
        step.forward(dispatcher)
        middle = time.perf_counter()
        step.backward()
        end = time.perf_counter()
        return (middle - start) * 1e6, (end - middle) * 1e6, (end - start) * 1e6

    def _run_cuda(self, step: Step, dispatcher: Dispatcher) -> tuple[float, float, float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        step.forward(dispatcher)
        marks[1].record()
        step.backward()
        marks[2].record()
        torch.cuda.synchronize(self._device)
        forward, backward = marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])
        return forward * 1e3, backward * 1e3, marks[0].elapsed_time(marks[2]) * 1e3


def _normal(tokens: int, width: int, seed: int, rank: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)
    return torch.randn(tokens, width, generator=generator).to(device=device, dtype=dtype)
