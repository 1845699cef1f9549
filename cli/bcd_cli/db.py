"""`bcd-registry db`: the revision of the catalog."""

from __future__ import annotations

import typer

from bcd_cli import options
from bcd_cli.command import Command, example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json

app = typer.Typer(help="Revision of the registry's database.", no_args_is_help=True, rich_markup_mode=None)


@app.command(cls=Command, epilog=example("bcd-registry db current"))
def current(ctx: typer.Context, as_json: options.AsJson = False) -> None:
    """Show the database's revision and the one that this release needs."""
    from bcd_registry.catalog.schema import HEAD
    from bcd_registry.stores import read_revision

    state = state_of(ctx)
    revision = read_revision(state.settings)
    if as_json:
        print_json(
            {
                "schema": 1,
                "revision": revision,
                "needed": HEAD,
                "home": str(state.settings.home),
                "catalog": state.settings.catalog_name,
            }
        )
        return
    verdict = "not made yet" if revision is None else "current" if revision == HEAD else f"this release needs {HEAD}"
    typer.echo(f"{revision or 'none'} ({verdict}) in {state.settings.catalog_name}")


@app.command(cls=Command, epilog=example("bcd-registry db upgrade"))
def upgrade(ctx: typer.Context) -> None:
    """Bring the database to the revision that this release needs."""
    from bcd_registry.settings import upgrade_catalog

    before, after = upgrade_catalog(state_of(ctx).settings)
    typer.echo(f"{after}, as it was" if before == after else f"{before or 'none'} -> {after}")
