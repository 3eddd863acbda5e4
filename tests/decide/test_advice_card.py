"""The evidence card: generated from rows, valid against the schema in the repository, origins never mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_dispatch.core.errors import StoreError, UsageError
from moe_dispatch.core.registry import load_backends
from moe_dispatch.decide.card import EvidenceCard, schema_text
from moe_dispatch.decide.card_build import CardRows, build_card
from moe_dispatch.evidence.own import OwnRow
from moe_dispatch.evidence.published import load_training
from moe_dispatch.flow.card import card_text, make_card, write_card

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "evidence-card.schema.json"


@pytest.fixture(scope="module")
def card() -> EvidenceCard:
    return make_card("qwen3-235b-a22b")


def test_the_schema_in_the_repository_is_current() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), (
        "run: python -m moe_dispatch.decide.card docs/schema/evidence-card.schema.json"
    )


def check(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> None:
    """The part of JSON Schema that the card's uses; unknown keywords fail, so that nothing passes unread."""
    if "$ref" in schema:
        return check(value, root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    known = {"title", "description", "default", "type", "properties", "required", "additionalProperties", "items"}
    known |= {"enum", "anyOf", "minItems", "exclusiveMinimum", "$defs", "$schema"}
    assert set(schema) <= known, set(schema) - known
    if "anyOf" in schema:
        assert any(_passes(value, each, root) for each in schema["anyOf"])
        return None
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None)}
    if "type" in schema and schema["type"] != "boolean":
        assert isinstance(value, kinds[schema["type"]]), (value, schema["type"])
    if "enum" in schema:
        assert value in schema["enum"]
    if isinstance(value, dict):
        properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
        assert set(schema.get("required", ())) <= set(value)
        for name, each in value.items():
            if name in properties:
                check(each, properties[name], root)
            else:
                assert extra, name
                check(each, extra, root)
    if isinstance(value, list):
        assert len(value) >= schema.get("minItems", 0)
        for each in value:
            check(each, schema["items"], root)
    return None


def _passes(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    try:
        check(value, schema, root)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("subject", ["qwen3-235b-a22b", "deepseek-v3", "glm-5", "moonlight-16b-a3b"])
def test_the_yaml_is_valid_against_the_schema(subject: str) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    document = yaml.safe_load(card_text(make_card(subject)))
    check(document, schema, schema)
    assert EvidenceCard.model_validate(document).subject == document["subject"]
    with pytest.raises(AssertionError):
        check({**document, "verdict": "winner"}, schema, schema)


def test_it_says_what_is_known_by_hardware(card: EvidenceCard) -> None:
    assert card.status["b300"].word == "matched pairs"
    assert card.status["b300"].pair_winners["alltoall"] > card.status["b300"].pair_winners["deepep"]
    assert card.status["gb200"].word == "training steps"
    assert card.status["vr200"].word == "recipe only"
    assert card.status["h100"].conflict == ("alltoall", "deepep")
    assert "measure" in card.summary


def test_recommendations_are_candidates_with_reasons_and_the_recipe_in_force(card: EvidenceCard) -> None:
    by_hardware = {one.hardware: one for one in card.recommendations}
    assert by_hardware["h100"].candidates[0] == "alltoall"
    assert by_hardware["h100"].recipe.startswith("alltoall (performance)")
    assert by_hardware["gb200"].recipe.startswith("hybridep with 32 SMs")
    assert "vr200" not in by_hardware  # not in the hardware catalogue
    assert all(one.confidence for one in card.recommendations)
    assert {(one.dispatcher, one.knob) for one in card.tuning_parameters} >= {("deepep", "num_sms")}


def test_limitations_name_what_is_inferred_missing_or_does_not_fit(card: EvidenceCard) -> None:
    text = "\n".join(card.known_limitations)
    assert "published steps is inferred" in text
    assert "forced balance: benchmarks only" in text
    assert "does not fit: layout: ETP x EP x PP = 256 does not divide 64 GPUs" in text
    assert "no pair that isolates the dispatcher is published on" in text


def test_a_family_is_found_by_its_name_and_a_wrong_one_gets_close_ones() -> None:
    family = make_card("gpt-oss")
    assert (family.kind, set(family.models)) == ("family", {"gpt-oss-20b", "gpt-oss-120b"})
    assert make_card("dsv3").models == ("deepseek-v3",)
    with pytest.raises(UsageError, match="unknown model or family 'gpt-os-120b'") as caught:
        make_card("gpt-os-120b")
    assert "gpt-oss-120b" in caught.value.fix


def own(run: str, latency: float | None, status: str = "ok") -> OwnRow:
    return OwnRow(
        id=run,
        session="s",
        stage="decide",
        status=status,
        dispatcher="hierarchical",
        choice="hierarchical",
        level="layer",
        latency_us=latency,
        iterations=20,
        reason="" if latency else "no module",
        source="store",
        date="2026-12-01",
        model="qwen3-30b-a3b",
        hardware="h100",
        precision="bf16",
    )


def test_own_records_stand_beside_published_ones_and_are_not_ranked_with_them() -> None:
    steps = tuple(row for row in load_training() if row.model == "qwen3-30b-a3b" and row.hardware == "h100")
    rows = CardRows(pairs=(), steps=steps, recipes=(), own=(own("r1", 900.0), own("r2", 800.0), own("r3", None, "oom")))
    card = build_card("qwen3-30b-a3b", "model", ["qwen3-30b-a3b"], rows, load_backends(), "test")
    best = [one for one in card.best_measured if one.hardware == "h100" and one.precision == "bf16"]
    assert {one.origin for one in best} == {"published", "own"}
    assert next(one for one in best if one.origin == "own").id == "r2"
    assert any("r3 (hierarchical) has no figure: oom: no module" in line for line in card.known_limitations)
    published, mine = (one for one in card.validated_on if one.hardware == "h100")
    assert (published.origin, mine.origin, mine.rows) == ("published", "own", 2)


def test_a_store_without_a_record_of_it_is_said() -> None:
    rows = CardRows(pairs=(), steps=(), recipes=(), searched=4)
    card = build_card("m", "model", ["m"], rows, load_backends(), "test")
    assert card.known_limitations == ("none of the 4 own records is of it",)


def test_a_functional_check_is_no_best_result() -> None:
    row = next(row for row in load_training() if row.tflops_per_gpu and row.model == "qwen3-30b-a3b")
    checked = replace(row, labels=("functional_check",))
    card = build_card("m", "model", ["m"], CardRows(pairs=(), steps=(checked,), recipes=()), load_backends(), "test")
    assert card.best_measured == ()


def test_nothing_known_is_said() -> None:
    card = build_card("m", "model", ["m"], CardRows(pairs=(), steps=(), recipes=()), load_backends(), "test")
    assert "Nothing is published" in card.summary
    assert card.status == {}


def test_a_store_or_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no directory of records"):
        make_card("qwen3-30b-a3b", tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_card("x", tmp_path / "file" / "card.yaml")
