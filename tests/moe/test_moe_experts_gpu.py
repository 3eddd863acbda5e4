import pytest
import torch

from moe_dispatch.moe import experts as module
from moe_dispatch.moe.experts import GroupedExperts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA device")]

EPS16 = torch.finfo(torch.bfloat16).eps
BF16_TOLERANCE = 4 * EPS16
"""Relative to the largest value. Both paths sum in float32 and round to bf16 after each product; another order of
accumulation flips single roundings, and up to three roundings chain to a gradient."""


def run(experts, x, probs, counts):
    x, probs = x.clone().requires_grad_(), probs.clone().requires_grad_()
    experts.zero_grad()
    y = experts(x, probs, counts)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, probs.grad, experts.w1_eHP.grad.clone(), experts.w2_eFH.grad.clone()]


@pytest.mark.parametrize("counts", [[40, 0, 7, 129], [0, 0, 0, 1], [0, 0, 0, 0]])
@pytest.mark.parametrize(("hidden", "ffn"), [(256, 128), (2048, 768)])
def test_grouped_product_equals_the_loop(monkeypatch, counts, hidden, ffn):
    torch.manual_seed(0)
    experts = GroupedExperts(range(4), hidden, ffn, dtype=torch.bfloat16, device="cuda")
    rows = sum(counts) + 3
    x = torch.randn(rows, hidden, device="cuda").bfloat16()
    probs = torch.rand(rows, device="cuda")
    grouped = run(experts, x, probs, torch.tensor(counts))
    monkeypatch.setattr(module, "_grouped_mm_works", lambda *_: False)
    looped = run(experts, x, probs, torch.tensor(counts))
    for got, want in zip(grouped, looped, strict=True):
        bound = BF16_TOLERANCE * float(want.abs().max())
        torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=bound)


def test_gradient_of_a_plain_sum_is_accepted():
    experts = GroupedExperts(range(2), 256, 128, dtype=torch.bfloat16, device="cuda")
    x = torch.ones(16, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    experts(x, torch.ones(16, device="cuda"), torch.tensor([9, 7])).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_grouped_product_is_detected_on_hopper_and_newer():
    if torch.cuda.get_device_capability() < (9, 0) or not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("needs compute capability 9.0 and torch.nn.functional.grouped_mm")
    assert module._grouped_mm_works(torch.bfloat16, torch.device("cuda", 0), 256, 128)
    assert not module._grouped_mm_works(torch.float64, torch.device("cuda", 0), 256, 128)
