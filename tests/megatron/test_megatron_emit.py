"""Configuration of each dispatcher and release, against the field names and rules of Megatron-LM and Bridge."""

from __future__ import annotations

import pytest

from moe_dispatch.core.backend import BackendSpec, Knob, MegatronMapping
from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UnsupportedByBackend, UsageError
from moe_dispatch.megatron.emit import Emitted, emit
from moe_dispatch.site.hardware import declared_site
from moe_dispatch.site.model import Site
from moe_dispatch.workload.workload import Workload, load_workload

DOMAIN_VARIABLE = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
FORCED = "--moe-router-force-load-balancing"
SM_FIELDS = ("moe_flex_dispatcher_num_sms", "moe_deepep_num_sms", "moe_hybridep_num_sms")


def workload(model: str = "qwen3-30b-a3b", **given: object) -> Workload:
    return load_workload(model, **({"ep": 16} | given))


def emitted(name: str, version: str = "0.19", **knobs: int | str | None) -> Emitted:
    return emit(Choice(dispatcher=name, knobs=knobs), core_version=version)


@pytest.mark.parametrize(
    ("name", "version", "knobs", "expected"),
    [
        ("alltoall", "0.19", {}, "--moe-token-dispatcher-type alltoall"),
        ("alltoall", "0.12", {}, "--moe-token-dispatcher-type alltoall"),
        ("allgather", "0.19.2", {}, "--moe-token-dispatcher-type allgather"),
        (
            "deepep",
            "0.19",
            {},
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep --moe-flex-dispatcher-num-sms 20",
        ),
        (
            "deepep",
            "0.18",
            {"num_sms": 24},
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep --moe-deepep-num-sms 24",
        ),
        (
            "hybridep",
            "0.20.0-dev",
            {"num_sms": 32},
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --moe-flex-dispatcher-num-sms 32",
        ),
        (
            "hybridep",
            "0.16",
            {"num_sms": 16},
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 16",
        ),
        ("hybridep", "0.19", {}, "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep"),
        (
            "hybridep",
            "0.18",
            {"num_sms": 24, "num_sms_preprocessing": 64},
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 24 "
            "--moe-hybridep-num-sms-preprocessing 64",
        ),
        (
            "ncclep",
            "0.19",
            {},
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend ncclep --moe-flex-dispatcher-num-sms 0",
        ),
    ],
)
def test_megatron_lm_arguments(name: str, version: str, knobs: dict[str, int], expected: str) -> None:
    found = emitted(name, version, **knobs)
    assert " ".join(found.megatron_lm_args) == expected
    assert found.benchmark_only_args == (FORCED,)
    assert found.core_version == version


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_a_baseline_neutralises_the_backend_field_in_bridge(name: str) -> None:
    # run_recipe.py turns any backend name, even the default, into type flex; only null keeps the type.
    found = emitted(name)
    assert found.bridge_overrides == (
        f"model.moe_token_dispatcher_type={name}",
        "model.moe_flex_dispatcher_backend=null",
        *(f"model.{field}=null" for field in SM_FIELDS),
    )
    assert not any("backend" in argument for argument in found.megatron_lm_args)


def test_a_release_without_the_backend_field_gets_no_override_of_it() -> None:
    found = emitted("alltoall", "0.15")
    assert found.bridge_overrides == ("model.moe_token_dispatcher_type=alltoall",)
    assert found.bridge_harness_flags == ()


@pytest.mark.parametrize(
    ("name", "flag"),
    [("alltoall", "None"), ("deepep", "deepep"), ("hybridep", "hybridep"), ("ncclep", None), ("allgather", None)],
)
def test_bridge_harness_flag(name: str, flag: str | None) -> None:
    # The harness accepts deepep, hybridep and None only.
    assert emitted(name).bridge_harness_flags == (("--moe_flex_dispatcher_backend", flag) if flag else ())


def test_bridge_overrides_of_a_flex_backend_pin_the_unified_sm_count() -> None:
    assert emitted("deepep", num_sms=24).bridge_overrides == (
        "model.moe_token_dispatcher_type=flex",
        "model.moe_flex_dispatcher_backend=deepep",
        "model.moe_flex_dispatcher_num_sms=24",
        "model.moe_deepep_num_sms=null",
        "model.moe_hybridep_num_sms=null",
    )


def test_an_open_sm_count_clears_what_a_recipe_may_have_set_for_any_backend() -> None:
    overrides = emitted("hybridep").bridge_overrides
    for field in SM_FIELDS:
        assert f"model.{field}=null" in overrides
    assert not any("num_sms" in override for override in emitted("hybridep", "0.18").bridge_overrides)


def test_only_an_unset_sm_count_is_called_untuned() -> None:
    assert any("not tuned" in note for note in emitted("deepep").notes)
    assert not any("not tuned" in note for note in emitted("deepep", num_sms=20).notes)


@pytest.mark.parametrize(
    ("name", "version", "needed"),
    [("deepep", "0.15", "0.16"), ("hybridep", "0.12.1", "0.16"), ("ncclep", "0.18", "0.19")],
)
def test_a_release_that_is_too_old_is_refused_with_the_first_that_is_not(name: str, version: str, needed: str) -> None:
    with pytest.raises(UsageError, match=f"{name} needs Megatron-Core {needed} or newer; this is {version}"):
        emitted(name, version)
    assert emitted(name, needed).emitted == Choice(dispatcher=name)


def test_a_knob_whose_field_is_newer_than_the_release_is_refused() -> None:
    with pytest.raises(UsageError, match=r"moe_hybridep_num_sms_preprocessing \(since 0.18\)"):
        emitted("hybridep", "0.17", num_sms=16, num_sms_preprocessing=64)


@pytest.mark.parametrize("version", ["", "latest", "19", "0.x"])
def test_a_malformed_release_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="not a release number"):
        emitted("alltoall", version)


def test_an_invalid_knob_is_refused() -> None:
    with pytest.raises(UsageError, match="num_sms"):
        emitted("deepep", num_sms=21)


def test_a_knob_that_megatron_lacks_is_named_only_where_it_was_moved() -> None:
    assert any(note.startswith("form=p2p has no counterpart") for note in emitted("alltoall", form="p2p").notes)
    assert not any("counterpart" in note for note in emitted("alltoall", form="collective").notes)


def test_natural_routing_is_said_explicitly_because_a_recipe_may_force_it() -> None:
    found = emit(Choice(dispatcher="alltoall"), benchmark_routing=False)
    assert (found.benchmark_only_args, found.benchmark_only_overrides) == ((), ())
    assert found.bridge_overrides[-1] == "model.moe_router_force_load_balancing=false"
    assert not any("force" in argument for argument in found.megatron_lm_args)


def test_biased_routing_has_a_field_of_its_own_since_0_17() -> None:
    biased = workload(routing="biased:0.5")
    found = emit(Choice(dispatcher="alltoall"), workload=biased)
    assert found.benchmark_only_args == ("--moe-router-force-biased", "0.5")
    assert found.benchmark_only_overrides == ("model.moe_router_force_biased=0.5",)
    with pytest.raises(UsageError, match="moe_router_force_biased"):
        emit(Choice(dispatcher="alltoall"), workload=biased, core_version="0.16")


def test_routing_that_megatron_cannot_force_is_said() -> None:
    found = emit(Choice(dispatcher="alltoall"), workload=workload(routing="zipf:1.0"))
    assert found.benchmark_only_args == (FORCED,)
    assert any("cannot force zipf" in note for note in found.notes)


@pytest.mark.parametrize(
    ("site", "ep", "inside"),
    [("h100", 16, 8), ("h100", 4, 4), ("b200", 64, 8), ("gb200", 64, 64), ("gb300", 8, 8)],
)
def test_hybridep_domain_follows_the_site(site: str, ep: int, inside: int) -> None:
    # Bridge derives the same: min(EP, 8) on eight-GPU nodes, EP on NVL72 (scripts/performance/utils/utils.py).
    found = emit(Choice(dispatcher="hybridep"), workload=workload(ep=ep), site=declared_site(site, 16))
    assert found.environment == {DOMAIN_VARIABLE: str(inside)}
    assert found.bridge_overrides[-1] == f"env_vars.{DOMAIN_VARIABLE}={inside}"


def test_the_domain_counts_ranks_of_the_expert_tensor_group_too() -> None:
    found = emit(Choice(dispatcher="hybridep"), workload=workload(ep=2, tp=2, etp=2), site=declared_site("h100", 2))
    assert found.environment == {DOMAIN_VARIABLE: "4"}


def test_an_unknown_domain_leaves_the_variable_to_the_library() -> None:
    for site in (None, Site(name="here", declared=False, device="cpu")):
        found = emit(Choice(dispatcher="hybridep"), workload=workload(), site=site)
        assert found.environment == {}
        assert any(DOMAIN_VARIABLE in note and "not set" in note for note in found.notes)


def test_a_group_that_does_not_divide_into_domains_is_refused() -> None:
    with pytest.raises(UsageError, match="group of 128 ranks does not divide into NVLink domains of 72"):
        emit(Choice(dispatcher="hybridep"), workload=workload(ep=128), site=declared_site("gb200", 32))


def test_only_hybridep_sets_the_domain() -> None:
    for name in ("alltoall", "allgather", "deepep", "ncclep"):
        assert emit(Choice(dispatcher=name), workload=workload(), site=declared_site("h100", 2)).environment == {}


@pytest.mark.parametrize("name", ["deepep", "ncclep"])
def test_a_group_of_one_rank_is_refused_where_megatron_asserts(name: str) -> None:
    with pytest.raises(UsageError, match="TP x EP of at least 2"):
        emit(Choice(dispatcher=name), workload=workload(ep=1))
    assert emit(Choice(dispatcher="hybridep"), workload=workload(ep=1)).shipped


def test_a_group_size_that_deepep_has_no_table_for_is_noted() -> None:
    def noted(ep: int) -> bool:
        notes = emit(Choice(dispatcher="deepep"), workload=workload("deepseek-v3", ep=ep)).notes
        return any(f"no configuration for a group of {ep} ranks" in note for note in notes)

    assert not noted(128)
    assert noted(256)


def test_deepep_on_gb200_says_that_bridge_would_time_alltoall() -> None:
    def notes(site: str) -> str:
        return " ".join(emit(Choice(dispatcher="deepep"), site=declared_site(site)).notes)

    assert "on GB200: its harness flag falls back to alltoall" in notes("gb200")
    assert "falls back" not in notes("b200")


def test_ncclep_needs_a_capacity_in_0_19_only() -> None:
    assert any("moe_expert_rank_capacity_factor" in note for note in emitted("ncclep", "0.19.2").notes)
    assert not any("moe_expert_rank_capacity_factor" in note for note in emitted("ncclep", "0.20").notes)


def test_what_megatron_does_not_ship_has_no_arguments_and_says_so() -> None:
    found = emitted("hierarchical", chunks=8)
    assert (found.emitted, found.shipped, found.megatron_lm_args, found.bridge_overrides) == (None, False, (), ())
    assert "ships no dispatcher 'hierarchical'" in found.notes[0]


def test_a_fallback_is_emitted_in_its_place_and_named() -> None:
    fallback = Choice(dispatcher="deepep", knobs={"num_sms": 24})
    found = emit(Choice(dispatcher="hierarchical"), workload=workload(), fallback=fallback)
    alone = emit(fallback, workload=workload())
    assert (found.requested.dispatcher, found.emitted, found.shipped) == ("hierarchical", fallback, False)
    assert found.megatron_lm_args == alone.megatron_lm_args
    assert "deepep(num_sms=24)" in found.notes[0]
    with pytest.raises(UnsupportedByBackend, match="nor the fallback"):
        emit(Choice(dispatcher="hierarchical"), fallback=Choice(dispatcher="hierarchical"))


def test_a_third_party_backend_is_emitted_from_its_specification_alone() -> None:
    spec = BackendSpec(
        name="teleport",
        title="Teleport",
        summary="a third party's",
        kind="package",
        knobs={"width": Knob(type="int", default=3, sm=True)},
        megatron=MegatronMapping(
            dispatcher_type="flex", flex_backend="teleport", min_core_version="0.20", sm_knob="width"
        ),
    )
    found = emit(Choice(dispatcher="teleport"), spec, core_version="0.20")
    assert found.megatron_lm_args == (
        *("--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "teleport"),
        *("--moe-flex-dispatcher-num-sms", "3"),
    )
    with pytest.raises(UsageError, match=r"0\.20 or newer"):
        emit(Choice(dispatcher="teleport"), spec, core_version="0.19")
