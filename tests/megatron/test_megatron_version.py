"""Release numbers and the table of fields by release."""

from __future__ import annotations

import pytest

from moe_dispatch.core.errors import UsageError
from moe_dispatch.core.registry import load_backends
from moe_dispatch.megatron.fields import load_fields
from moe_dispatch.megatron.version import has_reached, parse_release


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.19", (0, 19)),
        ("0.19.2", (0, 19)),
        ("core_v0.16.0", (0, 16)),
        ("0.20.0-dev", (0, 20)),
        ("0.17.0rc0", (0, 17)),
    ],
)
def test_release_numbers(text: str, release: tuple[int, int]) -> None:
    assert parse_release(text) == release


def test_releases_compare_as_numbers_not_as_text() -> None:
    assert has_reached("0.19", "0.9")
    assert not has_reached("0.9", "0.19")
    assert has_reached("1.0", "0.19")


def test_every_field_that_a_shipped_backend_needs_is_in_the_table_of_releases() -> None:
    table = load_fields()
    for spec in load_backends().values():
        if spec.megatron is None or spec.megatron.flex_backend is None:
            continue
        needed = {*table.backend(spec.megatron.flex_backend).knob_fields.values()}
        needed |= {spec.megatron.legacy_sm_field} - {None}
        assert needed <= set(table.fields), spec.name
        assert set(table.backend(spec.megatron.flex_backend).knob_fields) <= set(spec.knobs), spec.name


def test_a_field_is_required_from_its_first_release_on() -> None:
    table = load_fields()
    table.require("moe_flex_dispatcher_num_sms", "0.19")
    with pytest.raises(UsageError, match=r"0\.18\.4 has no field moe_flex_dispatcher_num_sms \(since 0\.19\)"):
        table.require("moe_flex_dispatcher_num_sms", "0.18.4")
