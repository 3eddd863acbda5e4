"""The fused SwiGLU (on CUDA, else through the interpreter) against float64."""

from __future__ import annotations

import pytest
import torch

from moe_dispatch.dispatch import kernels
from moe_dispatch.moe.activation import weighted_activation

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
U = {torch.float32: 2.0**-24, torch.float16: 2.0**-11}
STEPS = 16
"""Roundings on the way to a value, exp included, with a factor two to spare; each relative to the largest term."""


@pytest.mark.parametrize("dtype", list(U))
@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (5, 24), (3, 1300)])
def test_value_and_gradients(monkeypatch: pytest.MonkeyPatch, rows: int, width: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr(kernels, "kernels_for", lambda device: True)
    generator = torch.Generator().manual_seed(7)
    inner = torch.randn(rows, 2 * width, generator=generator).to(dtype).to(DEVICE).requires_grad_()
    probs = torch.rand(rows, generator=generator).to(DEVICE).requires_grad_()
    grad = torch.randn(rows, width, generator=generator).to(dtype).to(DEVICE)
    out = weighted_activation(inner, probs, "swiglu")
    out.backward(grad)
    assert inner.grad is not None
    assert probs.grad is not None
    inner64 = inner.detach().cpu().double().requires_grad_()
    probs64 = probs.detach().cpu().double().requires_grad_()
    gate, up = inner64.chunk(2, dim=1)
    want = torch.nn.functional.silu(gate) * up * probs64[:, None]
    want.backward(grad.cpu().double())
    if not rows:
        assert out.shape == (0, width)
        return
    unweighted = (grad.cpu().double() * torch.nn.functional.silu(gate) * up).detach().abs().sum(1)
    for got, expected, scale, roundoff in (
        (out, want, want.detach().abs().max(), U[dtype]),
        (inner.grad, inner64.grad, inner64.grad.abs().max(), U[dtype]),
        (probs.grad, probs64.grad, unweighted, U[torch.float32] * width),  # a sum of `width` terms
    ):
        difference = (got.detach().cpu().double() - expected.detach()).abs()
        assert bool((difference <= STEPS * roundoff * scale).all())
