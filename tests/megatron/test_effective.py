"""The dispatcher that really runs, through launchers, Bridge and releases."""

from __future__ import annotations

import pytest

from moe_dispatch.megatron.effective import Effective, effective_dispatcher
from moe_dispatch.megatron.settings import (
    Framework,
    Launcher,
    MegatronConfig,
    Origin,
    OriginKind,
    Stage,
    UnknownSetting,
    Value,
)
from moe_dispatch.megatron.settings_fields import Setting
from moe_dispatch.site.hardware import declared_site

TYPE, BACKEND = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"


def effective(
    values: dict[str, Setting],
    *,
    framework: Framework = "megatron-lm",
    launcher: Launcher = "unknown",
    kind: OriginKind = "flag",
    core: str | None = "0.19.2",
    bridge: str | None = None,
    stage: Stage = "requested",
    site: str | None = None,
    complete: bool = True,
) -> Effective:
    config = MegatronConfig(
        values={name: Value(value, Origin(kind, "test")) for name, value in values.items()},
        framework=framework,
        launcher=launcher,
        stage=stage,
        complete=complete,
        core_version=core,
        bridge_version=bridge,
    )
    return effective_dispatcher(config, declared_site(site, 8) if site else None)


def test_defaults_prove_nothing() -> None:
    found = effective({})
    assert (found.requested, found.effective, found.backend) == (None, "allgather", None)
    assert found.origin.kind == "default"


def test_backend_in_a_dump_is_not_what_runs() -> None:
    found = effective({TYPE: "alltoall", BACKEND: "deepep"}, kind="log", stage="validated")
    assert (found.requested, found.effective) == ("alltoall", "alltoall")
    assert found.findings == ()


def test_backend_of_the_user_without_flex_is_asked_for_and_does_not_run() -> None:
    found = effective({TYPE: "alltoall", BACKEND: "hybridep"})
    assert (found.requested, found.effective) == ("hybridep", "alltoall")
    assert not found.as_requested
    assert [each.id for each in found.findings] == ["backend-without-flex"]


@pytest.mark.parametrize(
    ("launcher", "kind", "runs"),
    [
        ("run_recipe", "recipe", "deepep"),
        ("run_script", "recipe", "alltoall"),
        ("pretrain", "recipe", "alltoall"),
        ("run_recipe", "override", "deepep"),
    ],
)
def test_one_recipe_two_dispatchers_by_its_launcher(launcher: Launcher, kind: OriginKind, runs: str) -> None:
    found = effective({TYPE: "alltoall", BACKEND: "deepep"}, framework="megatron-bridge", launcher=launcher, kind=kind)
    assert found.effective == runs


def test_run_recipe_undoes_an_alltoall_arm_even_without_a_backend_written() -> None:
    found = effective({TYPE: "alltoall"}, framework="megatron-bridge", launcher="run_recipe", kind="override")
    assert (found.requested, found.effective) == ("alltoall", "deepep")
    assert [each.severity.value for each in found.findings] == ["error"]


def test_run_recipe_leaves_an_alltoall_arm_with_a_null_backend() -> None:
    found = effective({TYPE: "alltoall", BACKEND: None}, framework="megatron-bridge", launcher="run_recipe")
    assert found.effective == "alltoall"
    assert found.findings == ()


@pytest.mark.parametrize(
    ("backend", "gpu", "accepted"),
    [
        ("deepep", "gb200", False),
        ("deepep", "gb300", False),
        ("deepep", "b200", True),
        ("deepep", "h100", True),
        ("deepep", "a100", True),
        ("hybridep", "gb200", True),
        ("hybridep", "mi300x", False),
        ("ncclep", "gb200", True),
    ],
)
def test_bridge_accepts_a_backend_by_gpu(backend: str, gpu: str, accepted: bool) -> None:
    values: dict[str, Setting] = {TYPE: "flex", BACKEND: backend}
    by_recipe = effective(values, framework="megatron-bridge", kind="recipe", site=gpu)
    by_override = effective(values, framework="megatron-bridge", kind="override", site=gpu)
    assert by_recipe.effective == (backend if accepted else "alltoall")
    assert by_override.effective == (backend if accepted else None)
    assert bool(by_override.refused) is not accepted


def test_bridge_0_6_2_looks_at_the_gpu_for_ncclep_too() -> None:
    values: dict[str, Setting] = {TYPE: "flex", BACKEND: "ncclep"}
    assert effective(values, framework="megatron-bridge", kind="recipe", site="a100").effective == "ncclep"
    older = effective(values, framework="megatron-bridge", kind="recipe", site="a100", bridge="0.6.2")
    assert older.effective == "alltoall"


def test_megatron_lm_has_no_list_of_gpus() -> None:
    assert effective({TYPE: "flex", BACKEND: "deepep"}, site="gb200").effective == "deepep"


def test_flex_with_a_null_backend_is_alltoall_in_bridge_and_refused_elsewhere() -> None:
    values: dict[str, Setting] = {TYPE: "flex", BACKEND: None}
    assert effective(values, framework="megatron-bridge").effective == "alltoall"
    assert effective(values, framework="megatron-bridge", bridge="0.6.2").effective is None
    assert effective(values).effective is None


def test_a_printed_configuration_is_not_rewritten_again() -> None:
    values: dict[str, Setting] = {TYPE: "alltoall", BACKEND: "hybridep"}
    found = effective(values, framework="megatron-bridge", launcher="run_recipe", stage="validated", kind="log")
    assert found.effective == "alltoall"


def test_unknown_type_behind_overrides_is_said() -> None:
    with pytest.raises(UnknownSetting, match=TYPE):
        effective({BACKEND: "hybridep"}, complete=False)


def test_known_type_behind_overrides_needs_no_backend() -> None:
    assert effective({TYPE: "alltoall"}, complete=False).effective == "alltoall"


@pytest.mark.parametrize(
    ("values", "core", "count", "field"),
    [
        ({BACKEND: "deepep"}, "0.19.2", 20, None),
        ({BACKEND: "hybridep"}, "0.19.2", None, None),
        ({BACKEND: "hybridep"}, "0.16.1", 16, None),
        ({BACKEND: "hybridep"}, "0.17.1", None, None),
        ({BACKEND: "deepep", "moe_hybridep_num_sms": 32}, "0.19.2", 32, "moe_hybridep_num_sms"),
        ({BACKEND: "deepep", "moe_hybridep_num_sms": 32}, "0.18.2", 20, None),
        ({BACKEND: "deepep", "moe_deepep_num_sms": 24}, "0.18.2", 24, "moe_deepep_num_sms"),
        (
            {BACKEND: "hybridep", "moe_hybridep_num_sms": 32, "moe_flex_dispatcher_num_sms": 16},
            "0.20.0",
            16,
            "moe_flex_dispatcher_num_sms",
        ),
        ({BACKEND: "deepep", "moe_hybridep_num_sms": 32, "moe_deepep_num_sms": 20}, "0.19.2", None, None),
        ({BACKEND: "ncclep"}, "0.20.0", None, None),
        ({BACKEND: "ncclep", "moe_flex_dispatcher_num_sms": 0}, "0.20.0", 0, "moe_flex_dispatcher_num_sms"),
    ],
)
def test_sm_count_by_name_and_release(
    values: dict[str, Setting], core: str, count: int | None, field: str | None
) -> None:
    found = effective({TYPE: "flex", **values}, core=core)
    assert (found.sm_count, found.sm_field) == (count, field)


@pytest.mark.parametrize(("core", "runs"), [("0.15.3", "deepep"), ("0.19.2", "deepep")])
def test_the_old_switch_selects_deepep(core: str, runs: str) -> None:
    found = effective({TYPE: "flex", "moe_enable_deepep": True}, core=core)
    assert (found.requested, found.effective) == (runs, runs)


def test_ncclep_is_no_backend_before_0_19() -> None:
    assert effective({TYPE: "flex", BACKEND: "ncclep"}, core="0.18.2").effective is None
    assert effective({TYPE: "alltoall", BACKEND: "ncclep"}, core="0.18.2").effective == "alltoall"
    assert effective({TYPE: "alltoall", BACKEND: "ncclep"}, core="0.19.2").effective is None
