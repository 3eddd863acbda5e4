"""Time that a step spends inside a dispatcher, seen from outside: works for every backend, in both directions.

Forward calls are timed around `*_start` and `*_finish`; the backward pass between two marks that autograd passes before
and after the exchange. Wall clock on a CPU; on CUDA, events of the current stream, so kernels of another stream count
as soon as the current one waits for them. A dispatcher's own permutation and sums are inside.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from moe_dispatch.dispatch.base import Dispatched, Dispatcher

_Moment = float | torch.cuda.Event


class ExchangeClock:
    """Collects intervals of one step."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._intervals: list[tuple[str, _Moment, _Moment]] = []

    def now(self) -> _Moment:
        """This moment, of the host or of the current stream."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, begin: _Moment, end: _Moment) -> None:
        """Keep an interval."""
        self._intervals.append((name, begin, end))

    def take(self) -> tuple[float, dict[str, int]]:
        """(milliseconds, intervals by name) since the last call. On CUDA the device must be synchronised."""
        total = sum(_milliseconds(begin, end) for _, begin, end in self._intervals)
        counts: dict[str, int] = {}
        for name, _, _ in self._intervals:
            counts[name] = counts.get(name, 0) + 1
        self._intervals.clear()
        return total, counts


class TimedDispatcher(Dispatcher):
    """A dispatcher that behaves as `inner` and reports its calls to a clock. Owns nothing; close `inner`."""

    def __init__(self, inner: Dispatcher, clock: ExchangeClock) -> None:
        super().__init__(
            inner.group,
            inner.num_experts,
            inner.hidden,
            inner.topk,
            inner.max_tokens,
            inner.dtype,
            inner.device,
            inner.knobs,
        )
        self.name = inner.name
        self.combine_roundings = inner.combine_roundings
        self.inner = inner
        self.clock = clock

    def dispatch_start(self, x_TH: torch.Tensor, expert_ids_TK: torch.Tensor, probs_TK: torch.Tensor) -> Any:
        """See `Dispatcher.dispatch_start`."""
        span = _Span(self.clock, "dispatch_backward")
        x_TH, probs_TK = _Mark.apply(span, False, x_TH, probs_TK)  # type: ignore[no-untyped-call]
        begin = self.clock.now()
        pending = self.inner.dispatch_start(x_TH, expert_ids_TK, probs_TK)
        self.clock.add("dispatch_start", begin, self.clock.now())
        return span, pending

    def dispatch_finish(self, pending: Any) -> Dispatched:
        """See `Dispatcher.dispatch_finish`."""
        span, inner = pending
        begin = self.clock.now()
        got = self.inner.dispatch_finish(inner)
        self.clock.add("dispatch_finish", begin, self.clock.now())
        x_RH, probs_R = _Mark.apply(span, True, got.x_RH, got.probs_R)  # type: ignore[no-untyped-call]
        return Dispatched(x_RH=x_RH, probs_R=probs_R, tokens_per_expert_e=got.tokens_per_expert_e, state=got.state)

    def combine_start(self, y_RH: torch.Tensor, state: Any) -> Any:
        """See `Dispatcher.combine_start`."""
        span = _Span(self.clock, "combine_backward")
        (y_RH,) = _Mark.apply(span, False, y_RH)  # type: ignore[no-untyped-call]
        begin = self.clock.now()
        pending = self.inner.combine_start(y_RH, state)
        self.clock.add("combine_start", begin, self.clock.now())
        return span, pending

    def combine_finish(self, pending: Any) -> torch.Tensor:
        """See `Dispatcher.combine_finish`."""
        span, inner = pending
        begin = self.clock.now()
        out_TH = self.inner.combine_finish(inner)
        self.clock.add("combine_finish", begin, self.clock.now())
        (marked_TH,) = _Mark.apply(span, True, out_TH)  # type: ignore[no-untyped-call]
        result: torch.Tensor = marked_TH
        return result


class _Span:
    """One exchange of the backward pass, which begins at the outputs of the forward one and ends at its inputs."""

    def __init__(self, clock: ExchangeClock, name: str) -> None:
        self.clock, self.name = clock, name
        self.begin: _Moment | None = None

    def passed(self, outputs: bool) -> None:
        if outputs:
            self.begin = self.clock.now()
        elif self.begin is not None:
            self.clock.add(self.name, self.begin, self.clock.now())


class _Mark(torch.autograd.Function):
    """Identity that tells a span when the backward pass goes through it."""

    @staticmethod
    def forward(ctx: Any, span: _Span, outputs: bool, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.span, ctx.outputs = span, outputs
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.span.passed(ctx.outputs)
        return (None, None, *grads)


def _milliseconds(begin: _Moment, end: _Moment) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return (end - begin) * 1e3
    assert isinstance(begin, torch.cuda.Event)
    assert isinstance(end, torch.cuda.Event)
    return float(begin.elapsed_time(end))
