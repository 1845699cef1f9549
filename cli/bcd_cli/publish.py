"""`bcd-registry publish`."""

from __future__ import annotations

from typing import Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json
from bcd_registry.errors import ConfigError

EPILOG = example("bcd-registry publish --spool")


def publish(
    ctx: typer.Context,
    spool: Annotated[bool, typer.Option("--spool", help="What runs kept on disk while the registry did not answer.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Even what was meant for another registry than this one.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Give the registry what it could not take when it was found.

    A file goes once the registry has it. `tune` and `plan` do this by themselves when they begin.
    """
    if not spool:
        raise ConfigError("it is not said what to publish", hint="`bcd-registry publish --spool`")
    from bcd_cli.rendering.housekeeping import render_published
    from bcd_registry.spool import SPOOL_FOLDER, origin_of, publish_spool

    state = state_of(ctx)
    if not state.settings.registry_enabled:
        raise ConfigError("the registry is switched off: it would forget what it is given", hint="unset BCD_REGISTRY")
    origin = None if every else origin_of(state.settings)
    with state.open_registry() as registry:
        published = publish_spool(registry, state.settings.home / SPOOL_FOLDER, origin=origin)
    if as_json:
        print_json({"schema": 1, **published.as_json()})
        return
    state.out.print(render_published(published), crop=False)
