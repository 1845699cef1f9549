"""Options that several commands share, and how their text is read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli.streams import stdout_to_stderr
from bcd_registry.errors import ConfigError
from bcd_tuner.clustering import Clustering

if TYPE_CHECKING:
    from bcd_cli.state import State
    from bcd_registry.model import NetworkSpec

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A name from bcd-registry.toml, a path to an .onnx or .pt2 file, package:IMPORT_NAME/path/in/package.onnx, "
        "or a model of MLflow: models:/NAME/VERSION, models:/NAME@ALIAS, runs:/RUN_ID/PATH.",
        show_default=False,
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Fix an input's dimensions: INPUT=1,3,48,192. Repeatable.", metavar="INPUT=DIMS"),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", help="`native` is this CPU; an older baseline such as x86-64-v3 fits a fleet.", show_default=False
    ),
]
Trials = Annotated[
    int | None, typer.Option("--trials", help="Measurements for a task that is searched from nothing.", show_default=False)
]
TimeBudget = Annotated[
    str | None,
    typer.Option(
        "--time-budget", help="Tuning after which no new round begins: 300, 90s, 5m, 1h30m.", show_default=False, metavar="TIME"
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the run; it is stored with it.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Ignore what the registry knows.")]
Canary = Annotated[
    int, typer.Option("--canary", min=0, help="Measure so many known records again before they are reused.", metavar="N")
]
Siblings = Annotated[
    Clustering,
    typer.Option(
        "--clustering",
        help="What makes tasks of the run siblings; the registry is asked by signature all the same.",
        rich_help_panel="For comparison",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, everything else on stderr.")]

_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_TIME = re.compile(r"(?:(?P<d>\d+(?:\.\d+)?)d)?(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")
_SHAPE = re.compile(r"(?P<name>.+)=(?P<dims>\d+(?:[,x]\d+)*)")


def parse_time(text: str, option: str = "--time-budget") -> float:
    """Seconds from `300`, `90s`, `5m`, `1h30m` or `90d`; the option is named in the error.

    Raises:
        ConfigError: It is none of these, or nothing.
    """
    match = _TIME.fullmatch(text.strip())
    seconds = sum(float(value) * _UNIT_S[unit] for unit, value in match.groupdict().items() if value) if match else 0.0
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{option} {text!r} is not a time", hint="seconds, or a form such as 90s, 5m, 1h30m, 2d")
    return seconds


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Dimensions by input name from `INPUT=1,3,48,192`.

    Raises:
        ConfigError: One is of another form, or an input is there twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"--shape {text!r} is not INPUT=DIMS", hint="for example --shape x=1,3,48,192")
        if match["name"] in shapes:
            raise ConfigError(f"--shape is given twice for input {match['name']!r}", hint="give each input once")
        shapes[match["name"]] = tuple(int(dim) for dim in re.split("[,x]", match["dims"]))
    return shapes


def resolve(
    state: State, model: str, *, shape: list[str] | None, target: str | None, trials: int | None, time_budget: str | None
) -> NetworkSpec:
    """The network that the options name, with what they change.

    Raises:
        ConfigError: One of them is wrong.
        NetworkError: It is a model of MLflow, and cannot be downloaded.
    """
    shapes = parse_shapes(shape or [])
    time_budget_s = None if time_budget is None else parse_time(time_budget)
    from bcd_registry.settings import resolve_network

    spec = resolve_network(state.settings, model, shapes, target=target, trials=trials, time_budget_s=time_budget_s)
    return fetched(state, spec)


def fetched(state: State, spec: NetworkSpec) -> NetworkSpec:
    """The network with its file at hand: a model of MLflow is downloaded, any other is as it was.

    Raises:
        NetworkError: It cannot be downloaded.
    """
    from bcd_registry.model_uri import is_model_uri

    if not is_model_uri(spec.source):
        return spec
    with stdout_to_stderr():
        from bcd_tuner.mlflow_networks import fetch_network

        return fetch_network(spec, state.settings.mlflow_tracking_uri, state.scratch)
