import pytest
import torch

from moe_dispatch.core.errors import UsageError
from moe_dispatch.moe.activation import weighted_activation
from moe_dispatch.moe.experts import GroupedExperts

HIDDEN, FFN = 24, 20
EPS32, EPS16 = torch.finfo(torch.float32).eps, torch.finfo(torch.bfloat16).eps


def reference(experts, x, probs, counts):
    """Row by row in float64 from the same weights."""
    owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    w1, w2 = experts.w1_eHP.double()[owner], experts.w2_eFH.double()[owner]
    inner = torch.einsum("rh,rhp->rp", x[: len(owner)], w1)
    if experts.activation == "swiglu":
        gate, up = inner.chunk(2, dim=1)
        active = torch.nn.functional.silu(gate) * up
    else:
        active = inner.clamp(min=0) ** 2
    return torch.einsum("rf,rfh->rh", active * probs[: len(owner), None], w2)


@pytest.mark.parametrize("activation", ["swiglu", "squared_relu"])
@pytest.mark.parametrize("counts", [[3, 0, 5, 1], [0, 0, 0, 9], [9, 0, 0, 0]])
def test_values_and_gradients_equal_the_row_by_row_reference(activation, counts):
    torch.manual_seed(0)
    experts = GroupedExperts(range(4, 8), HIDDEN, FFN, activation=activation)
    x = torch.randn(11, HIDDEN, requires_grad=True)  # two padding rows
    probs = torch.rand(11, requires_grad=True)
    y = experts(x, probs, torch.tensor(counts))
    seed = torch.randn(11, HIDDEN)
    (y * seed).sum().backward()
    mine = [y.detach(), x.grad, probs.grad, experts.w1_eHP.grad, experts.w2_eFH.grad]
    x64, p64 = x.detach().double().requires_grad_(), probs.detach().double().requires_grad_()
    experts.w1_eHP.grad = experts.w2_eFH.grad = None
    wanted = reference(experts, x64, p64, counts)
    (wanted * seed[:9]).sum().backward()
    exact = [wanted.detach(), x64.grad, p64.grad, experts.w1_eHP.grad, experts.w2_eFH.grad]
    assert not mine[0][9:].any()
    assert not mine[1][9:].any()
    mine[0] = mine[0][:9]
    for got, want in zip(mine, exact, strict=True):
        # Three chained float32 products of at most 24 terms: 3 * 24 roundings of the largest value.
        bound = 3 * HIDDEN * EPS32 * max(1.0, float(want.abs().max()))
        torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=bound)


def test_gradients_accumulated_in_place_are_those_of_autograd():
    torch.manual_seed(3)
    plain, in_place = (GroupedExperts(range(3), HIDDEN, FFN) for _ in range(2))
    in_place.accumulate_in_place = True
    counts = torch.tensor([4, 0, 5])
    for step in range(3):  # the first pass has no gradient to add to
        x, probs, seed = torch.randn(9, HIDDEN), torch.rand(9), torch.randn(9, HIDDEN)
        for experts in (plain, in_place):
            experts(x, probs, counts).backward(seed)
        if step == 0:
            kept = in_place.w1_eHP.grad.data_ptr()
    assert in_place.w1_eHP.grad.data_ptr() == kept
    for name in ("w1_eHP", "w2_eFH"):
        want = getattr(plain, name).grad
        # Two more float32 additions, in another order inside the product.
        bound = 3 * HIDDEN * EPS32 * float(want.abs().max())
        torch.testing.assert_close(getattr(in_place, name).grad, want, rtol=0, atol=bound)


def test_bf16_activation_is_rounded_once():
    generator = torch.Generator().manual_seed(3)
    inner = torch.randn(50, 2 * FFN, generator=generator).bfloat16()
    probs = torch.rand(50, generator=generator)
    gate, up = inner.double().chunk(2, dim=1)
    exact = torch.nn.functional.silu(gate) * up * probs.double()[:, None]
    got = weighted_activation(inner, probs, "swiglu").double()
    # One rounding to bf16 (half an ulp) on top of float32 noise.
    assert ((got - exact).abs() <= exact.abs() * (EPS16 / 2 + 16 * EPS32) + 1e-30).all()


@pytest.mark.parametrize("kind", ["swiglu", "squared_relu"])
def test_activation_gradient(kind):
    torch.manual_seed(4)
    inner = torch.randn(6, 8, dtype=torch.float32, requires_grad=True)
    probs = torch.rand(6, requires_grad=True)
    grads = torch.autograd.grad(weighted_activation(inner, probs, kind).sum(), (inner, probs))
    inner64, probs64 = inner.detach().double().requires_grad_(), probs.detach().double().requires_grad_()
    if kind == "swiglu":
        gate, up = inner64.chunk(2, dim=1)
        value = torch.nn.functional.silu(gate) * up * probs64[:, None]
    else:
        value = torch.relu(inner64) ** 2 * probs64[:, None]
    for got, want in zip(grads, torch.autograd.grad(value.sum(), (inner64, probs64)), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=64 * EPS32, atol=64 * EPS32)


def test_no_rows_gives_no_rows_and_zero_weight_gradients():
    experts = GroupedExperts(range(3), HIDDEN, FFN, dtype=torch.bfloat16)
    y = experts(torch.zeros(0, HIDDEN, dtype=torch.bfloat16), torch.zeros(0), torch.zeros(3, dtype=torch.int64))
    assert y.shape == (0, HIDDEN)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert torch.equal(experts.w1_eHP.grad, torch.zeros_like(experts.w1_eHP))


def test_weights_depend_on_the_global_id_and_nothing_else():
    whole = GroupedExperts(range(8), HIDDEN, FFN, seed=5)
    part = GroupedExperts(range(4, 6), HIDDEN, FFN, seed=5)
    other = GroupedExperts(range(4, 6), HIDDEN, FFN, seed=6)
    assert torch.equal(whole.w1_eHP[4:6], part.w1_eHP)
    assert torch.equal(whole.w2_eFH[4:6], part.w2_eFH)
    assert not torch.equal(part.w1_eHP, other.w1_eHP)
    assert not torch.equal(part.w1_eHP[0], part.w1_eHP[1])


def test_weight_scale_is_that_of_the_fan_in():
    experts = GroupedExperts(range(2), 256, 512)
    values = experts.w1_eHP.detach()
    # n normals estimate a variance with relative standard error sqrt(2/n); six of them.
    assert abs(float(values.var()) * 256 - 1) < 6 * (2 / values.numel()) ** 0.5


def test_counts_that_do_not_fit_are_refused():
    experts = GroupedExperts(range(3), HIDDEN, FFN)
    with pytest.raises(UsageError, match="sum to 5"):
        experts(torch.zeros(4, HIDDEN), torch.zeros(4), torch.tensor([5, 0, 0]))
    with pytest.raises(UsageError, match="counts of 2 experts"):
        experts(torch.zeros(4, HIDDEN), torch.zeros(4), torch.tensor([2, 2]))
