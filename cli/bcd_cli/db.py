"""`bcd-registry db`: the revision of the catalog."""

from __future__ import annotations

import typer

from bcd_cli import options
from bcd_cli.command import Command, example
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json

app = typer.Typer(help="Revision of the registry's database.", no_args_is_help=True, rich_markup_mode=None)


@app.command(cls=Command, epilog=example("bcd-registry db current"))
def current(ctx: typer.Context, as_json: options.AsJson = False) -> None:
    """Show the database's revision and the one that this release needs."""
    from bcd_registry.catalog.schema import HEAD

    state = state_of(ctx)
    revision = read_revision(state)
    if as_json:
        print_json({"schema": 1, "revision": revision, "needed": HEAD, "home": str(state.settings.home)})
        return
    verdict = "not made yet" if revision is None else "current" if revision == HEAD else f"this release needs {HEAD}"
    typer.echo(f"{revision or 'none'} ({verdict}) in {state.settings.home}")


@app.command(cls=Command, epilog=example("bcd-registry db upgrade"))
def upgrade(ctx: typer.Context) -> None:
    """Bring the database to the revision that this release needs."""
    from bcd_registry.settings import upgrade_catalog

    before, after = upgrade_catalog(state_of(ctx).settings)
    typer.echo(f"{after}, as it was" if before == after else f"{before or 'none'} -> {after}")


def read_revision(state: State) -> str | None:
    """The revision of the catalog's file, None when there is none; never makes one.

    Raises:
        RegistryError: The file cannot be read as a catalog.
    """
    from bcd_registry.catalog.engines import file_engine, transaction
    from bcd_registry.catalog.schema import current_revision
    from bcd_registry.settings import CATALOG_FILE

    path = state.settings.home / CATALOG_FILE
    if not path.exists():
        return None
    engine = file_engine(path)
    try:
        with transaction(engine, write=False) as connection:
            return current_revision(connection)
    finally:
        engine.dispose()
