import pytest
import torch
import torch.distributed as dist

from moe_dispatch.core.errors import UsageError
from moe_dispatch.dispatch.base import Dispatched, Dispatcher
from moe_dispatch.moe.layer import MoELayer
from moe_dispatch.workload.model import ModelShape, RouterShape
from moe_dispatch.workload.routing import RoutingSpec, generate_logits

TOKENS = 19
EPS32 = torch.finfo(torch.float32).eps
LAYER_TOLERANCE = 1024 * EPS32
"""Relative to the largest value: chained float32 products of at most 40 terms and a sum of K=3 rows, forward and back;
a few hundred roundings bound the worst entry."""


class OneRank(Dispatcher):
    """Sorts copies by expert in plain torch: the least that the interface asks of one rank."""

    name = "one-rank"

    def dispatch_start(self, x_TH, expert_ids_TK, probs_TK):
        flat = expert_ids_TK.reshape(-1)
        order = torch.argsort(torch.where(flat < 0, self.num_experts, flat), stable=True)[: int((flat >= 0).sum())]
        counts = torch.bincount(flat[order], minlength=self.num_experts)
        token = order // self.topk
        state = (token, x_TH.shape[0])
        return Dispatched(
            x_RH=x_TH[token], probs_R=probs_TK.reshape(-1)[order], tokens_per_expert_e=counts, state=state
        )

    def dispatch_finish(self, pending):
        return pending

    def combine_start(self, y_RH, state):
        token, tokens = state
        return y_RH.new_zeros(tokens, y_RH.shape[1]).index_add(0, token, y_RH)

    def combine_finish(self, pending):
        return pending


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "rendezvous"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def make(group, dtype=torch.float32, **changes):
    fields = {
        "name": "tiny",
        "hidden": 16,
        "num_layers": 2,
        "num_moe_layers": 2,
        "num_experts": 8,
        "topk": 3,
        "moe_ffn_hidden": 12,
        **changes,
    }
    shape = ModelShape(**fields)
    dispatcher = OneRank(group, shape.num_experts, shape.dispatch_width, shape.topk, TOKENS, dtype, "cpu")
    return shape, MoELayer(shape, dispatcher, seed=3)


def dense(shape, weights, x, ids):
    """The layer as a loop over tokens in float64; `ids` are the choices, so that ties cannot differ."""

    def ffn(row, w1, w2, prob):
        inner = row @ w1
        if shape.activation == "swiglu":
            gate, up = inner.chunk(2)
            active = torch.nn.functional.silu(gate) * up
        else:
            active = torch.relu(inner) ** 2
        return (active * prob) @ w2

    out = []
    for token, row in enumerate(x):
        logits = weights["router.weight_EH"] @ row
        softmax = shape.router.score_function == "softmax"
        scores = torch.softmax(logits, 0) if softmax else torch.sigmoid(logits)
        chosen = scores[ids[token]]
        probs = chosen / chosen.sum() * shape.router.scaling_factor
        narrow = row @ weights["down_HW"] if shape.moe_latent_size else row
        total = sum(
            ffn(narrow, weights["experts.w1_eHP"][e], weights["experts.w2_eFH"][e], p)
            for e, p in zip(ids[token], probs, strict=True)
        )
        if shape.moe_latent_size:
            total = total @ weights["up_WH"]
        if shape.shared_expert_ffn_hidden:
            total = total + ffn(row, weights["shared.w1_HP"], weights["shared.w2_FH"], 1.0)
        out.append(total)
    return torch.stack(out)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shared_expert_ffn_hidden": 20},
        {"router": RouterShape(score_function="sigmoid", num_groups=4, group_topk=2, scaling_factor=2.5)},
        {"moe_latent_size": 8, "activation": "squared_relu", "shared_expert_ffn_hidden": 10},
    ],
    ids=["plain", "shared", "sigmoid-groups", "latent-squared-relu"],
)
def test_output_and_every_gradient_equal_the_dense_reference(group, changes):
    shape, layer = make(group, **changes)
    torch.manual_seed(0)
    x = torch.randn(TOKENS, shape.hidden, requires_grad=True)
    seed = torch.randn(TOKENS, shape.hidden)
    out = layer(x)
    (out * seed).sum().backward()
    ids = layer.router(x).expert_ids_TK
    weights = {name: p.detach().double().requires_grad_() for name, p in layer.named_parameters()}
    x64 = x.detach().double().requires_grad_()
    wanted = dense(shape, weights, x64, ids)
    (wanted * seed).sum().backward()
    pairs = [(out.detach(), wanted.detach()), (x.grad, x64.grad)]
    pairs += [(p.grad, weights[name].grad) for name, p in layer.named_parameters()]
    for got, want in pairs:
        bound = LAYER_TOLERANCE * float(want.abs().max())
        assert bound > 0
        torch.testing.assert_close(got.double(), want, rtol=0, atol=bound)


def test_override_and_forced_ids_reach_the_experts(group):
    shape, layer = make(group)
    x = torch.randn(TOKENS, shape.hidden, generator=torch.Generator().manual_seed(1))
    logits = torch.from_numpy(generate_logits(RoutingSpec.parse("force_balanced"), TOKENS, 8, 3, 0, 0))
    ids = logits.topk(3, dim=1).indices
    forced = layer(x, forced_ids_TK=torch.full((TOKENS, 3), -1))
    assert torch.equal(forced, torch.zeros_like(forced))
    assert torch.equal(layer.router(x, logits).expert_ids_TK, ids)
    assert not torch.equal(layer(x, logits), layer(x))


def test_no_tokens(group):
    shape, layer = make(group, torch.bfloat16, shared_expert_ffn_hidden=8)
    out = layer(torch.zeros(0, shape.hidden, dtype=torch.bfloat16))
    assert out.shape == (0, shape.hidden)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert float(layer.last_aux_loss) == 0.0


def test_a_dispatcher_of_another_width_is_refused(group):
    shape, layer = make(group)
    wider = shape.model_copy(update={"hidden": 32})
    with pytest.raises(UsageError, match=r"\(16, 8, 3\), tiny needs \(32, 8, 3\)"):
        MoELayer(wider, layer.dispatcher)
