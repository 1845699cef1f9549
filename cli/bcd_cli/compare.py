"""`bcd-registry compare`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.networks import name_and_version, title
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json
from bcd_registry.errors import ConfigError

if TYPE_CHECKING:
    from bcd_registry.model import RunSummary
    from bcd_registry.registry import Registry
    from bcd_tuner.comparison import Comparison

EPILOG = example("bcd-registry compare v1 v2", "bcd-registry compare v1 v2 --seed-runs 3 --html v1-v2.html")

_RUN_ID = re.compile(r"[0-9a-f]{8,32}")
_MOST_RUNS = 1000

Version = Annotated[
    str,
    typer.Argument(
        help="A name from the configuration file, NAME or NAME:VERSION of a tuned network, or the id of a run.",
        show_default=False,
    ),
]


def compare(
    ctx: typer.Context,
    first: Version,
    second: Version,
    seed_runs: Annotated[int, typer.Option(min=1, help="Take the newest N runs of each: they show what seeds differ by.")] = 1,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with charts, which needs nothing else.", show_default=False)
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Put two tuned versions side by side.

    Latency, effort, grades, tasks. A difference counts when it is larger than the runs' own noise. Runs of two machines are
    not compared by time.
    """
    from bcd_cli.rendering.compare import render_comparison

    state = state_of(ctx)
    with state.open_registry() as registry:
        found = _compare(state, registry, (first, second), seed_runs)
    if html is not None:
        _write_page(found, html)
    if as_json:
        print_json(found.as_json())
        return
    state.out.print(render_comparison(found, html), crop=False)


def _compare(state: State, registry: Registry, labels: tuple[str, str], n_runs: int) -> Comparison:
    from bcd_tuner.comparison import compare_runs

    first, second = (_runs_of(label, state, registry, n_runs) for label in labels)
    return compare_runs(
        labels,
        (first, second),
        differences=_differences(registry, first[0], second[0]),
        mlflow_uri=state.settings.mlflow_tracking_uri,
    )


def _runs_of(text: str, state: State, registry: Registry, n_runs: int) -> Sequence[RunSummary]:
    """The run of an id, or the newest that came to their end of a network.

    Raises:
        ConfigError: There is none.
    """
    from bcd_tuner.comparison import newest_runs

    if _RUN_ID.fullmatch(text) and text not in state.settings.networks:
        found = [run for run in registry.list_runs(limit=_MOST_RUNS) if run.id.startswith(text)]
        if len(found) == 1:
            return found
        if found:
            raise ConfigError(f"{len(found)} runs have an id that begins with {text}", hint="give more of it")
    name, version = name_and_version(text, state, registry)
    runs = newest_runs(registry.list_runs(network=name, version=version, limit=_MOST_RUNS), n_runs)
    if not runs:
        hint = f"`bcd-registry tune --model {text}` makes one; one that was cut short goes on when it is run again"
        raise ConfigError(f"no tune of {title(name, version)} has come to its end", hint=hint)
    return runs


def _differences(registry: Registry, first: RunSummary, second: RunSummary) -> list[str]:
    """What differs between the environments of two runs, for people."""
    from bcd_registry.errors import NotFound
    from bcd_registry.staleness import FieldClass, compare

    if first.environment_key == second.environment_key:
        return []
    try:
        then, now = (registry.get_environment(run.environment_key) for run in (first, second))
    except NotFound:
        return []
    return [found.describe() for found in compare(then, now) if found.field_class is not FieldClass.NOTE]


def _write_page(comparison: Comparison, path: Path) -> None:
    from bcd_cli.rendering.compare_page import comparison_page

    try:
        path.write_text(comparison_page(comparison), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}", hint="choose another file with --html") from error
