"""`bcd-registry pin` and `unpin`: versions of networks whose records `gc` leaves alone."""

from __future__ import annotations

import typer

from bcd_cli.command import example
from bcd_cli.networks import Network, Version, name_and_version, title
from bcd_cli.state import state_of

PIN_EPILOG = example("bcd-registry pin ppocr-det v4", "bcd-registry pin v1")
UNPIN_EPILOG = example("bcd-registry unpin ppocr-det v4")


def pin(ctx: typer.Context, network: Network, version: Version = None) -> None:
    """Keep a network's version and all records of its tasks.

    They stay whatever gc is told.
    """
    state = state_of(ctx)
    with state.open_registry() as registry:
        chosen = name_and_version(network, state, registry, version)
        registry.pin_network(*chosen)
    typer.echo(f"{title(*chosen)} is pinned: gc leaves its records alone")


def unpin(ctx: typer.Context, network: Network, version: Version = None) -> None:
    """Undo pin: gc may remove records of its tasks again."""
    state = state_of(ctx)
    with state.open_registry() as registry:
        chosen = name_and_version(network, state, registry, version)
        was_pinned = chosen in registry.list_pins()
        if not was_pinned:
            registry.get_network(*chosen)
        registry.unpin_network(*chosen)
    typer.echo(f"{title(*chosen)} is not pinned any more" if was_pinned else f"{title(*chosen)} was not pinned")
