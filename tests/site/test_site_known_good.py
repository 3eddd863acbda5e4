"""Which known combination a stack is nearest to."""

from __future__ import annotations

from moe_dispatch.site.known_good import load_known_good, nearest_known_good
from moe_dispatch.site.stack import DISTRIBUTIONS
from moe_dispatch.site.versions import matches

TORCH_211 = {"torch": "2.11.0+cu130", "nccl": "2.28.9", "nvshmem": "3.4.5", "driver": "580.95.05"}


def test_a_combination_that_fits_has_no_difference() -> None:
    nearest = nearest_known_good(TORCH_211, "alltoall")
    assert nearest is not None
    assert nearest.differences == ()
    assert "different here: nothing" in nearest.text()


def test_differences_are_named_with_both_versions() -> None:
    nearest = nearest_known_good(TORCH_211, "ncclep")
    assert nearest is not None
    assert nearest.combination.id == "nccl-extensions-0.1.0"
    assert {each.component: each.have for each in nearest.differences} == {"nccl": "2.28.9", "nccl_extensions": None}
    assert "nccl 2.28.9 (needs ==2.30.7)" in nearest.text()


def test_the_installed_package_decides_between_the_generations() -> None:
    first = nearest_known_good(TORCH_211 | {"deep_ep": "1.2.1+abcdef0"}, "deepep")
    second = nearest_known_good(TORCH_211 | {"deep_ep": "2.1.0", "nccl": "2.30.7"}, "deepep")
    assert first is not None
    assert second is not None
    assert (first.combination.id, second.combination.id) == ("deepep-v1-nvshmem-3.4.5", "deepep-v2-2.1.0")
    assert (first.differences, second.differences) == ((), ())


def test_newer_nvshmem_leads_to_the_build_that_bears_it() -> None:
    nearest = nearest_known_good({"deep_ep": "1.2.1", "nvshmem": "3.6.5"}, "deepep")
    assert nearest is not None
    assert nearest.combination.id == "deepep-v1-backport-564"


def test_an_unknown_backend_has_none() -> None:
    assert nearest_known_good(TORCH_211, "someone-elses") is None


def test_entries_speak_of_components_that_are_recorded() -> None:
    for entry in load_known_good():
        assert set(entry.components) <= {*DISTRIBUTIONS, "driver", "cuda"}, entry.id
        assert entry.source
        for condition in entry.components.values():
            assert isinstance(matches("1.0", condition.split(",")[0]), bool)
