"""`bcd-registry compile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options, release
from bcd_cli.command import example
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json, stdout_to_stderr
from bcd_registry.model_uri import checked_model_name

if TYPE_CHECKING:
    from bcd_tuner.mlflow_shipping import Registered

EPILOG = example("bcd-registry compile --model v2 -o v2/", "bcd-registry compile --model v2 -o v2/ --frozen bcd.lock")


def compile_network(
    ctx: typer.Context,
    model: options.Model,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="A new folder, or one of an earlier compile.", metavar="DIR", show_default=False),
    ],
    shape: options.Shape = None,
    target: options.Target = None,
    trials: release.Depth = 0,
    frozen: release.Frozen = None,
    seed: options.Seed = 0,
    register: Annotated[
        str | None,
        typer.Option(help="Log it to MLflow too, as the next version of this model.", metavar="NAME", show_default=False),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compile a network with what is published for it.

    Nothing is searched: a task without a published schedule stays untuned. The folder holds the library, manifest.json, and
    load.py and load.cc, which run it. It is verified against the untuned network on random and edge inputs, and written whole
    or not at all.
    """
    state = state_of(ctx)
    if register is not None:
        checked_model_name(register)
    spec = options.resolve(state, model, shape=shape, target=target, trials=None, time_budget=None)
    lock = release.read_frozen(frozen)
    with release.working(state) as (registry, say):
        from bcd_tuner.shipping import compile_to

        report = compile_to(output, spec, registry, say, trials=trials, lock=lock, seed=seed)
    registered = None if register is None else _register(state, output, register)
    if as_json:
        print_json({**report.as_json(), **({} if registered is None else {"registered": registered.as_json()})})
        return
    from bcd_cli.rendering.release import render_compiled

    state.out.print(render_compiled(report), crop=False)
    if registered is not None:
        typer.echo(f"MLflow:  {registered.uri}")


def _register(state: State, folder: Path, name: str) -> Registered:
    with stdout_to_stderr():
        from bcd_tuner.mlflow_shipping import register_compiled

        return register_compiled(folder, name, state.settings.mlflow_tracking_uri)
