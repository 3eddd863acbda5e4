import numpy as np
import pytest
import torch

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.moe.router import Router
from moe_dispatch.workload.model import RouterShape
from moe_dispatch.workload.routing import RoutingSpec, generate, generate_logits

TOKENS, HIDDEN, EXPERTS, TOPK = 33, 16, 16, 4
EPS32 = torch.finfo(torch.float32).eps
WEIGHT_TOLERANCE = 64 * EPS32
"""Oracle in float64 against float32: exp, a sum of at most E=16 terms and two quotients, each a few ulp."""


def oracle(x, router):
    """The router written out token by token in float64."""
    shape = router.shape
    ids, weights = [], []
    for row in (x.double() @ router.weight_EH.double().T).detach().numpy():
        if shape.score_function == "sigmoid":
            scores = 1 / (1 + np.exp(-row))
        elif shape.score_function == "sqrtsoftplus":
            scores = np.sqrt(np.log1p(np.exp(row)))
        else:
            scores = np.exp(row) / np.exp(row).sum()
        rank = scores + (router.expert_bias_E.double().numpy() if shape.expert_bias else 0)
        if shape.num_groups:
            size = EXPERTS // shape.num_groups
            best = TOPK // shape.group_topk
            values = [sorted(rank[g * size : (g + 1) * size])[-best:] for g in range(shape.num_groups)]
            keep = np.argsort([-sum(v) for v in values])[: shape.group_topk]
            rank = np.where(np.isin(np.arange(EXPERTS) // size, keep), rank, -np.inf)
        chosen = np.argsort(-rank)[:TOPK]
        weight = scores[chosen]
        if shape.normalize_topk:
            weight = weight / weight.sum()
        ids.append(chosen)
        weights.append(weight * shape.scaling_factor)
    return np.array(ids), np.array(weights)


@pytest.mark.parametrize(
    "shape",
    [
        RouterShape(),
        RouterShape(normalize_topk=False),
        RouterShape(score_function="sigmoid", scaling_factor=2.5),
        RouterShape(score_function="sigmoid", num_groups=4, group_topk=2, expert_bias=True),
        RouterShape(score_function="sqrtsoftplus", expert_bias=True, scaling_factor=1.5),
    ],
    ids=["softmax", "softmax-all", "sigmoid", "sigmoid-groups-bias", "sqrtsoftplus-bias"],
)
def test_router_equals_the_rule_written_out(shape):
    torch.manual_seed(1)
    router = Router(HIDDEN, EXPERTS, TOPK, shape)
    router.expert_bias_E.normal_(0, 0.2)
    x = torch.randn(TOKENS, HIDDEN)
    routing = router(x)
    ids, weights = oracle(x, router)
    assert routing.expert_ids_TK.dtype == torch.int64
    assert routing.probs_TK.dtype == torch.float32
    assert np.array_equal(routing.expert_ids_TK.numpy(), ids)
    np.testing.assert_allclose(routing.probs_TK.detach().numpy(), weights, rtol=WEIGHT_TOLERANCE)


def test_bias_changes_the_choice_and_not_the_weight():
    router = Router(HIDDEN, EXPERTS, 1, RouterShape(score_function="sigmoid", expert_bias=True, normalize_topk=False))
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(2))
    router.expert_bias_E[5] = 10.0
    routing = router(x)
    assert (routing.expert_ids_TK == 5).all()
    expected = torch.sigmoid(x @ router.weight_EH.detach()[5])
    torch.testing.assert_close(routing.probs_TK[:, 0], expected, rtol=WEIGHT_TOLERANCE, atol=WEIGHT_TOLERANCE)


def test_override_decides_the_choice_and_the_gradient_reaches_the_gate():
    router = Router(HIDDEN, EXPERTS, TOPK)
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    spec = RoutingSpec.parse("zipf:1.2")
    ids, probs = generate(spec, TOKENS, EXPERTS, TOPK, 7, 0)
    routing = router(x, torch.from_numpy(generate_logits(spec, TOKENS, EXPERTS, TOPK, 7, 0)))
    assert np.array_equal(routing.expert_ids_TK.numpy(), ids)
    np.testing.assert_allclose(routing.probs_TK.detach().numpy(), probs, rtol=WEIGHT_TOLERANCE)
    weight = torch.randn(TOKENS, TOPK)
    (routing.probs_TK * weight).sum().backward()
    override = torch.from_numpy(generate_logits(spec, TOKENS, EXPERTS, TOPK, 7, 0)).requires_grad_()
    torch.softmax(override.gather(1, torch.from_numpy(ids)), dim=1).mul(weight).sum().backward()
    bound = EXPERTS * 64 * EPS32 * override.grad.abs().max() * x.detach().abs().sum(0).max()
    torch.testing.assert_close(router.weight_EH.grad, override.grad.T @ x.detach(), rtol=0, atol=float(bound))


def test_forced_ids_keep_dropped_slots_without_weight():
    router = Router(HIDDEN, EXPERTS, 2)
    forced = torch.tensor([[3, -1], [0, 15], [-1, -1]])
    routing = router(torch.randn(3, HIDDEN), forced_ids_TK=forced)
    assert torch.equal(routing.expert_ids_TK, forced)
    assert torch.equal(routing.probs_TK == 0, forced < 0)
    sums = routing.probs_TK.detach().sum(dim=1)
    torch.testing.assert_close(sums, torch.tensor([1.0, 1.0, 0.0]), rtol=WEIGHT_TOLERANCE, atol=0)


def test_aux_loss_is_one_for_even_and_grows_with_skew():
    router = Router(HIDDEN, EXPERTS, 1, aux_loss_coeff=1.0)
    x = torch.randn(EXPERTS, HIDDEN)
    even = router(x, torch.eye(EXPERTS) * 0.01).aux_loss.detach()
    skewed = router(x, torch.eye(EXPERTS)[:1].expand(EXPERTS, EXPERTS) * 5).aux_loss
    assert abs(even.item() - 1.0) < WEIGHT_TOLERANCE  # coeff * E * sum (1/E * 1/E)
    expected = EXPERTS * float(torch.softmax(torch.eye(EXPERTS)[0] * 5, 0)[0])
    assert abs(skewed.item() - expected) < WEIGHT_TOLERANCE * expected
    skewed.backward()
    assert router.weight_EH.grad.abs().sum() > 0


def test_no_tokens_and_wrong_shapes():
    router = Router(HIDDEN, EXPERTS, TOPK, RouterShape(num_groups=4, group_topk=2), aux_loss_coeff=0.1)
    routing = router(torch.zeros(0, HIDDEN))
    assert routing.expert_ids_TK.shape == (0, TOPK)
    assert float(routing.aux_loss) == 0.0
    with pytest.raises(WorkloadError, match="logits_override has shape"):
        router(torch.zeros(2, HIDDEN), torch.zeros(2, EXPERTS + 1))
    with pytest.raises(WorkloadError, match="fewer than topk"):
        Router(HIDDEN, EXPERTS, 8, RouterShape(num_groups=8, group_topk=2))
