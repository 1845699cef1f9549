"""`bcd-registry lineage`."""

from __future__ import annotations

from typing import Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json

EPILOG = example("bcd-registry lineage 3f9a")


def lineage(
    ctx: typer.Context,
    record: Annotated[str, typer.Argument(help="How the record's id begins.", show_default=False)],
    as_json: options.AsJson = False,
) -> None:
    """Draw what a record was diffused from, and what from it.

    Up to the first prior, and down over all generations.
    """
    from bcd_cli.rendering.lineage import render_lineage
    from bcd_registry.lineage import find_lineage

    state = state_of(ctx)
    with state.open_registry() as registry:
        found = find_lineage(registry, record)
    if as_json:
        print_json({"schema": 1, **found.as_json()})
        return
    state.out.print(render_lineage(found), crop=False)
