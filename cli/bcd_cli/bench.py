"""`bcd-registry bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options, release
from bcd_cli.command import example
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json
from bcd_registry.errors import ConfigError

if TYPE_CHECKING:
    from bcd_registry.model import NetworkSpec
    from bcd_tuner.bench import BenchReport

EPILOG = example("bcd-registry bench --model v2", "bcd-registry bench --compiled v2/")


def bench(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="As for tune: compiled with what is published.", show_default=False),
    ] = None,
    compiled: Annotated[
        Path | None, typer.Option("--compiled", help="A folder that compile wrote.", metavar="DIR", show_default=False)
    ] = None,
    against_untuned: Annotated[
        bool, typer.Option("--against-untuned/--alone", help="Time the untuned network and onnxruntime beside it.")
    ] = True,
    repeats: release.Repeats = None,
    shape: options.Shape = None,
    target: options.Target = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Time a network end to end.

    Tuned, untuned and in onnxruntime, in turns. With --compiled alone only the folder's library is timed. With both,
    --model is the network that it was compiled from.
    """
    state = state_of(ctx)
    if model is None and compiled is None:
        raise ConfigError("it is not said what to time", hint="give --model, or --compiled with a folder, or both")
    spec = None if model is None else options.resolve(state, model, shape=shape, target=target, trials=None, time_budget=None)
    report = _measure(state, spec, compiled, against_untuned, repeats, seed)
    if as_json:
        print_json(report.as_json())
        return
    from bcd_cli.rendering.release import render_bench

    state.out.print(render_bench(report), crop=False)


def _measure(
    state: State, spec: NetworkSpec | None, compiled: Path | None, untuned: bool, repeats: int | None, seed: int
) -> BenchReport:
    with release.working(state) as (registry, say):
        from bcd_tuner.bench import bench_compiled, bench_published

        if compiled is not None:
            against = spec if untuned else None
            return bench_compiled(compiled, say, against=against, registry=registry, repeats=repeats, seed=seed)
        assert spec is not None
        return bench_published(spec, registry, say, untuned=untuned, repeats=repeats, seed=seed)
