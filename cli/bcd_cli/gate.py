"""`bcd-registry gate`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options, release
from bcd_cli.command import example
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json
from bcd_registry.errors import ConfigError

if TYPE_CHECKING:
    from bcd_tuner.gate import Baseline, GateReport

REFUSED = 6
EPILOG = example(
    "bcd-registry gate --model v2 --against v1 --max-regression 3%", "bcd-registry gate --model v2 --against v1.lock"
)

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_MODELS = (".onnx", ".pt2")


def gate(
    ctx: typer.Context,
    model: options.Model,
    against: Annotated[
        str, typer.Option("--against", help="A network as for --model, a lock, or a compiled folder.", show_default=False)
    ],
    max_regression: Annotated[str, typer.Option(help="How much slower it may be.", metavar="PERCENT")] = "3%",
    min_coverage: Annotated[
        str, typer.Option(help="How much of its estimated untuned time must have a published schedule.", metavar="PERCENT")
    ] = "95%",
    max_untuned: Annotated[
        int | None, typer.Option(min=0, help="How many tasks may be without a published schedule.", show_default=False)
    ] = None,
    repeats: release.Repeats = None,
    seed: options.Seed = 0,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit report.", metavar="FILE", show_default=False)] = None,
    summary: Annotated[
        Path | None,
        typer.Option(help="Append Markdown [default: $GITHUB_STEP_SUMMARY].", metavar="FILE", show_default=False),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say whether a version may go out.

    Exit code 0, or 6 and why not. Both are compiled and timed in turns on this machine, since milliseconds of another one
    don't compare. It is slower only when a 95% interval says so three times in a row.
    """
    state = state_of(ctx)
    spec = options.resolve(state, model, shape=None, target=None, trials=None, time_budget=None)
    regression, coverage = parse_percent(max_regression, "--max-regression"), parse_percent(min_coverage, "--min-coverage")
    with release.working(state) as (registry, say):
        from bcd_tuner.gate import Limits, run_gate

        baseline = _baseline(state, against)
        limits = Limits(regression, coverage, max_untuned)
        report = run_gate(spec, baseline, registry, limits, say, repeats=repeats, seed=seed)
    if as_json:
        print_json(report.as_json())
    else:
        from bcd_cli.rendering.gate import render_gate

        state.out.print(render_gate(report), crop=False)
    _write_files(report, junit, summary or state.settings.step_summary)
    if not report.passed:
        raise typer.Exit(REFUSED)


def parse_percent(text: str, option: str) -> float:
    """The share that `3%` means; a number without the sign might be either.

    Raises:
        ConfigError: It has another form, or is above 100%.
    """
    match = _PERCENT.fullmatch(text.strip())
    if match is None or float(match[1]) > 100:
        raise ConfigError(f"{option} {text!r} is not a percentage", hint="a number from 0 to 100 with its sign, for example 3%")
    return float(match[1]) / 100


def _baseline(state: State, text: str) -> Baseline:
    """What `--against` means: a name of the file goes before a path.

    Raises:
        ConfigError: It is none of these, or a lock of a network that is not in the file.
    """
    from bcd_registry.frozen import load_lock
    from bcd_tuner.gate import Baseline

    path, networks = Path(text), state.settings.networks
    if text not in networks and path.is_dir():
        return Baseline(text, folder=path)
    if text not in networks and path.is_file() and path.suffix not in _MODELS:
        lock = load_lock(path)
        name, version = lock.network.name, lock.network.version
        spec = next((spec for spec in networks.values() if (spec.name, spec.version) == (name, version)), None)
        if spec is None:
            raise ConfigError(f"{text} is of {name} {version}, which no network here is", hint="add it to bcd-registry.toml")
        return Baseline(text, spec, lock)
    return Baseline(text, options.resolve(state, text, shape=None, target=None, trials=None, time_budget=None))


def _write_files(report: GateReport, junit: Path | None, summary: Path | None) -> None:
    from bcd_cli.rendering.gate import as_junit, as_markdown

    try:
        if junit is not None:
            junit.write_bytes(as_junit(report))
        if summary is not None:
            with summary.open("a", encoding="utf-8") as file:
                file.write(as_markdown(report))
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror or error}", hint="check the path") from error
