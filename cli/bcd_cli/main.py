"""The command line. What it does is in `bcd_registry` and `bcd_tuner`; here are options, exit codes and text.

No heavy library is imported before a command needs it: `--help` has half a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bcd_cli import (
    bench,
    check,
    compare,
    db,
    diff,
    doctor,
    explain,
    export,
    gate,
    gc,
    import_,
    invalidate,
    lineage,
    lock,
    mlflow,
    networks,
    pins,
    plan,
    publish,
    records,
    stats,
    tune,
)
from bcd_cli import compile as compile_
from bcd_cli.command import Command, example
from bcd_cli.state import State

EXIT_CODES = {
    0: "done",
    2: "usage or configuration: unknown name, bad option, shape or target, toml",
    3: "the network cannot be read or imported",
    4: "the registry cannot be used: home, database, blobs, schema; or MLflow",
    5: "tuning or checking failed",
    6: "the gate said no",
    7: "frozen: what a lock or a compiled folder names is missing or damaged",
    8: "check: a stored latency no longer holds",
    9: "refused: the registry is read-only",
    130: "interrupted: what was found is kept, the same command goes on",
}
"""What scripts may rely on."""

_HELP = "Tune a network once; tune its next version from what the registry knows."
_EPILOG = (
    example("bcd-registry tune --model v1", "bcd-registry plan --model v2", "bcd-registry tune --model v2")
    + "\n\n\b\nExit codes:\n"
    + "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())
)

app = typer.Typer(
    name="bcd-registry",
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("tune", cls=Command, epilog=tune.EPILOG)(tune.tune)
app.command("plan", cls=Command, epilog=plan.EPILOG)(plan.plan)
app.command("check", cls=Command, epilog=check.EPILOG)(check.check)
app.command("explain", cls=Command, epilog=explain.EPILOG)(explain.explain)
app.command("compile", cls=Command, epilog=compile_.EPILOG)(compile_.compile_network)
app.command("bench", cls=Command, epilog=bench.EPILOG)(bench.bench)
app.command("lock", cls=Command, epilog=lock.EPILOG)(lock.lock)
app.command("diff", cls=Command, epilog=diff.EPILOG)(diff.diff)
app.command("gate", cls=Command, epilog=gate.EPILOG)(gate.gate)
app.command("compare", cls=Command, epilog=compare.EPILOG)(compare.compare)
app.add_typer(networks.app, name="networks")
app.add_typer(records.app, name="records")
app.command("lineage", cls=Command, epilog=lineage.EPILOG)(lineage.lineage)
app.command("invalidate", cls=Command, epilog=invalidate.INVALIDATE_EPILOG)(invalidate.invalidate)
app.command("restore", cls=Command, epilog=invalidate.RESTORE_EPILOG)(invalidate.restore)
app.command("pin", cls=Command, epilog=pins.PIN_EPILOG)(pins.pin)
app.command("unpin", cls=Command, epilog=pins.UNPIN_EPILOG)(pins.unpin)
app.command("stats", cls=Command, epilog=stats.EPILOG)(stats.stats)
app.command("gc", cls=Command, epilog=gc.EPILOG)(gc.gc)
app.command("publish", cls=Command, epilog=publish.EPILOG)(publish.publish)
app.command("import", cls=Command, epilog=import_.EPILOG)(import_.import_)
app.command("export", cls=Command, epilog=export.EPILOG)(export.export)
app.command("doctor", cls=Command, epilog=doctor.EPILOG)(doctor.doctor)
app.add_typer(mlflow.app, name="mlflow")
app.add_typer(db.app, name="db")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"bcd-registry {version('bcd-registry')}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    home: Annotated[
        Path | None, typer.Option(help="Folder of the registry [default: the user's data folder].", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file [default: bcd-registry.toml, found upwards].", show_default=False)
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse to change the registry; lookups work.")] = False,
    require_registry: Annotated[
        bool, typer.Option("--require-registry", help="Fail when the registry cannot be reached, rather than go on without.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show log lines and tracebacks.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    ctx.obj = State(home=home, config=config, debug=debug, read_only=read_only, require_registry=require_registry)


def main() -> None:
    """Entry point of the `bcd-registry` script."""
    app()
