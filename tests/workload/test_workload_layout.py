import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.layout import ParallelLayout

small = st.sampled_from([1, 2, 3, 4])


@given(tp=small, cp=small, pp=small, ep=small, etp=small, copies=st.integers(1, 3))
def test_ep_groups_partition_the_ranks_and_match_the_rank_order(tp, cp, pp, ep, etp, copies):
    world = copies * ParallelLayout.smallest_world(tp=tp, pp=pp, cp=cp, ep=ep, etp=etp)
    assume(world <= 192)
    layout = ParallelLayout(world=world, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp)
    assert layout.dp * tp * cp * pp == world
    assert layout.edp * etp * ep * pp == world
    # Independent oracle: walk the grid pp, edp, ep, etp in nested loops, the last fastest.
    rank, groups = 0, {}
    for stage in range(pp):
        for replica in range(layout.edp):
            for _ in range(ep):
                for shard in range(etp):
                    groups.setdefault((stage, replica, shard), []).append(rank)
                    rank += 1
    assert set(layout.ep_groups()) == {tuple(group) for group in groups.values()}
    for group in layout.ep_groups():
        assert all(layout.ep_group(member) == group for member in group)


def test_folding_example():
    # 16 ranks, attention TP 2 x DP 8, experts EP 8 with ETP 1: an EP group spans TP ranks.
    layout = ParallelLayout(world=16, tp=2, ep=8, etp=1)
    assert layout.ep_groups() == (tuple(range(8)), tuple(range(8, 16)))
    assert (layout.dp, layout.edp) == (8, 2)
    # The default ETP = TP strides the group instead.
    assert ParallelLayout(world=16, tp=2, ep=8).ep_group(1) == tuple(range(1, 16, 2))


def test_tokens_per_rank():
    assert ParallelLayout(world=16, ep=16).tokens_per_rank(4096, 1) == 4096
    assert ParallelLayout(world=16, tp=2, ep=8, etp=1).tokens_per_rank(4096, 2) == 4096
    assert ParallelLayout(world=16, tp=2, ep=8, etp=1, sequence_parallel=False).tokens_per_rank(4096, 1) == 4096
    assert ParallelLayout(world=16, cp=4, ep=8).tokens_per_rank(4096, 1) == 1024
    with pytest.raises(WorkloadError, match="sequence length 4095"):
        ParallelLayout(world=16, cp=4, ep=8).tokens_per_rank(4095, 1)


def test_ranks_per_domain_of_a_group():
    assert ParallelLayout(world=32, ep=32).ep_ranks_per_domain(8) == 8
    assert ParallelLayout(world=32, ep=4).ep_ranks_per_domain(8) == 4
    assert ParallelLayout(world=32, tp=2, ep=16).ep_ranks_per_domain(8) == 4
    with pytest.raises(WorkloadError, match="do not spread evenly"):
        ParallelLayout(world=12, ep=12).ep_ranks_per_domain(8)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"world": 8, "ep": 3}, "ETP x EP x PP = 3 does not divide the 8 ranks"),
        ({"world": 8, "tp": 3}, "TP x CP x PP = 3 does not divide"),
        ({"world": 8, "ep": 0}, "ep=0 must be at least 1"),
        ({"world": 8, "ep": "8"}, "ep='8' is not an integer"),
        ({"world": 8, "cp": True}, "cp=True is not an integer"),
    ],
)
def test_impossible_layouts(sizes, message):
    with pytest.raises(WorkloadError, match=message):
        ParallelLayout(**sizes)


def test_experts_and_batches_that_do_not_divide():
    layout = ParallelLayout(world=12, ep=12)
    with pytest.raises(WorkloadError, match="EP=12 does not divide the 128 experts") as caught:
        layout.check_experts(128)
    assert "1, 2, 4, 8, 16, 32" in caught.value.fix
    assert layout.micro_batches(48, 2) == 2
    with pytest.raises(WorkloadError, match="global batch 50 is not a multiple"):
        layout.micro_batches(50, 2)
    with pytest.raises(WorkloadError, match="rank 12 is outside"):
        layout.ep_group(12)
