"""What is compared: dispatchers under one contract, or one dispatcher under several stacks.

With the stack as the variable, the stack fields that differ become the name of an arm and leave the contract; the rules
of the verdict apply as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moe_dispatch.core.choice import Choice
from moe_dispatch.core.errors import UsageError
from moe_dispatch.decide.contract_table import STACK_GROUP, contract_fields, contract_table
from moe_dispatch.evidence.record import RunRecord

VARIABLES = ("dispatcher", "stack")


def by_stack(records: Sequence[RunRecord]) -> tuple[list[RunRecord], tuple[str, ...]]:
    """Make the stack the variable: records whose choice names the stack fields that vary, and those fields.

    A stack field that some record does not know stays in the contract as well, unknown: it caps the verdict.

    Raises:
        UsageError: several dispatchers or settings of one, or a stack that does not vary.
    """
    labels = sorted({record.choice.label for record in records})
    if len(labels) != 1:
        raise UsageError(
            f"--vary stack compares one dispatcher under several stacks; these records hold {', '.join(labels)}",
            "name one with --arm, and the same knobs in all",
        )
    table = contract_table()
    stacks = [
        {name: value for name, value in contract_fields(record).items() if table.rule(name).group == STACK_GROUP}
        for record in records
    ]
    names = sorted({name for stack in stacks for name in stack})
    varying = tuple(
        name for name in names if len({str(stack[name]) for stack in stacks if stack.get(name) is not None}) > 1
    )
    if not varying:
        raise UsageError(
            "--vary stack, but no stack field differs between these records",
            "give records of two stacks, or leave --vary out to compare dispatchers",
        )
    unknown = {name for name in varying if any(stack.get(name) is None for stack in stacks)}
    changed = [_relabelled(record, stack, varying, unknown) for record, stack in zip(records, stacks, strict=True)]
    return changed, varying


def _relabelled(record: RunRecord, stack: dict[str, Any], varying: Sequence[str], unknown: set[str]) -> RunRecord:
    contract = record.contract.model_dump()
    for name in varying:
        section, _, field = name.partition(".")
        contract[section].pop(field, None)
        if name in unknown:
            contract[section][field] = None
    knobs = {name.partition(".")[2]: str(stack.get(name) or "unknown") for name in varying}
    choice = Choice(dispatcher=record.choice.dispatcher, knobs={**record.choice.knobs, **knobs})
    return record.model_copy(update={"choice": choice, "contract": record.contract.model_validate(contract)})
