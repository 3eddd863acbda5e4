"""`moe-dispatch card`: the evidence card of a model or family, as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moe_dispatch.cli.output import JsonOption, print_json, say


def card(
    subject: Annotated[str, typer.Argument(metavar="WORKLOAD|FAMILY", help="A model's name, or a family's.")],
    own: Annotated[
        Path | None, typer.Option(metavar="STORE", help="Own records to show beside the published ones.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the YAML there (default: print it).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Generate the evidence card of a model or family: what is measured where, what to try, and what is not known.

    Own and published rows stand side by side and are never ranked together.
    """
    from moe_dispatch.flow.card import card_text, make_card, write_card

    made = make_card(subject, own)
    if out is not None:
        write_card(card_text(made), out)
        say(f"card of {made.subject}: {out}")
    if as_json:
        print_json(made)
    elif out is None:
        print(card_text(made), end="")
