"""The rest of the guide as data: complete, dated, refutable, and true of what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from moe_dispatch.cli.main import COMMANDS
from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import load_backends
from moe_dispatch.decide.guide_explain import all_guidance, backends_of, explain, find_guidance
from moe_dispatch.decide.guide_page import guide_page
from moe_dispatch.decide.guide_practice import (
    Practice,
    Variable,
    load_combinations,
    load_knobs,
    load_practice,
    load_variables,
)
from moe_dispatch.decide.guide_rules import BASELINE, load_rules
from moe_dispatch.site.exchange import load_exchange
from moe_dispatch.site.hardware import load_hardware
from moe_dispatch.workload.catalogue import list_models

ROOT = Path(__file__).parents[2]
DECIDE = ROOT / "src" / "moe_dispatch" / "decide"
PUBLIC_SOURCE = re.compile(r"[\w.-]+/[\w.-]+(@[\w.]+:\S+|#\d+(, #\d+)*)")
OTHER_SOURCES = ("the backend's own specification", "byte formula", "megatron-core 0.19.2 wheel")
OF_THIS_LAYER = ("guide*.py", "advi*.py", "ceiling.py", "card*.py", "prior*.py")


def test_ids_are_unique_over_all_parts() -> None:
    parts = (load_rules(), load_practice(), load_knobs(), load_variables(), load_combinations())
    assert len(all_guidance()) == sum(map(len, parts))


@pytest.mark.parametrize("one", all_guidance().values(), ids=lambda one: one.id)
def test_every_piece_can_be_explained_and_is_refutable(one) -> None:
    said = explain(one)
    assert said.effect
    assert said.holds is None
    assert len(said.refuted_by.split()) >= 3
    for source in said.sources:
        assert PUBLIC_SOURCE.fullmatch(source) or source.startswith(OTHER_SOURCES), source


def test_it_names_backends_and_knobs_that_exist() -> None:
    specs = load_backends()
    for one in all_guidance().values():
        assert set(backends_of(one)) <= set(specs), one.id
    for guide in load_knobs():
        assert guide.knob in specs[guide.backend].knobs


def test_the_domain_variables_are_those_that_the_library_reads() -> None:
    named = {(name, one.name) for one in load_variables() for name in one.backends}
    for backend, facts in load_exchange().items():
        for variable in (facts.domain_variable, facts.fabric_variable):
            assert variable is None or (backend, variable) in named


def test_sm_defaults_by_release_and_by_who_sets_them() -> None:
    said = {(guide.backend, each.value, each.who) for guide in load_knobs() for each in guide.defaults}
    assert ("deepep", 20, "library") in said
    assert {("hybridep", value, "library") for value in (16, 24, 8)} <= said
    assert ("hybridep", 32, "harness") in said
    assert ("ncclep", 0, "library") in said


def test_commands_of_the_path_exist() -> None:
    named = [command.split()[1] for one in load_practice() for command in one.commands]
    assert named
    assert set(named) <= set(COMMANDS)


def test_the_path_goes_from_bring_up_to_tuned() -> None:
    stages = [one.stage for one in load_practice() if one.topic == "path"]
    assert stages == sorted(stages, key=("bring-up", "profile", "tuned").index)
    assert set(stages) == {"bring-up", "profile", "tuned"}


def test_all_seven_pitfalls_name_their_guard() -> None:
    pitfalls = [one for one in load_practice() if one.topic == "pitfall"]
    assert len(pitfalls) == 7
    assert all(one.guard for one in pitfalls)


BASE = {"id": "x", "date": "2026-08-22", "text": "t", "sources": ["s"], "refuted_by": "a thing seen"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Practice, {"topic": "path", "guard": "g"}),
        (Practice, {"topic": "pitfall", "guard": "g", "stage": "tuned"}),
        (Practice, {"topic": "pitfall", "guard": ""}),
        (Variable, {"name": "A", "value": "", "how": "set"}),
        (Variable, {"name": "A", "value": "1", "how": "unset"}),
    ],
)
def test_half_an_entry_is_refused(kind, fields) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate(BASE | fields)


def test_an_unknown_rule_gets_close_ones() -> None:
    with pytest.raises(UsageError, match="no rule 'hopper-ordr'") as caught:
        find_guidance("hopper-ordr")
    assert "hopper-order" in caught.value.fix


def test_the_page_is_current_and_holds_every_rule() -> None:
    page = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    assert page == guide_page(), "run: python -m moe_dispatch.decide.guide_page docs/guide.md"
    for name in all_guidance():
        assert f"`{name}`" in page


def test_no_model_gpu_or_package_is_named_in_the_python_of_this_layer() -> None:
    packages = {name for name, spec in load_backends().items() if spec.kind == "package"}
    models = {entry.name for entry in list_models()}
    families = {name.rsplit("-", 1)[0] for name in models}
    words = {*packages, *models, *families, *load_hardware(), "DeepEP", "HybridEP", "NCCL-EP", "Hopper", "Blackwell"}
    assert BASELINE not in words
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(words)))})(?![\w-])", re.IGNORECASE)
    files = [file for each in OF_THIS_LAYER for file in DECIDE.glob(each)]
    assert len(files) >= 12
    found = {file.name: match[0] for file in files if (match := pattern.search(file.read_text(encoding="utf-8")))}
    assert found == {}
