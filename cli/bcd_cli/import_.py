"""`bcd-registry import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json, stdout_to_stderr
from bcd_registry.errors import ConfigError, ReadOnly

if TYPE_CHECKING:
    from bcd_registry.bundle import Bundle
    from bcd_registry.model import NetworkSpec
    from bcd_registry.registry import Registry
    from bcd_tuner.imports import ImportReport
    from bcd_tuner.report import ProgressSink

EPILOG = example(
    "bcd-registry import tuning-logs",
    "bcd-registry import ppocr-det-v4.bcd --remeasure --model v1",
)

Source = Annotated[
    Path,
    typer.Argument(help="A folder of TVM's JSONDatabase, or a bundle that `export --bundle` wrote.", show_default=False),
]


def import_(
    ctx: typer.Context,
    source: Source,
    remeasure: Annotated[
        bool, typer.Option("--remeasure", help="Check and time the fastest schedules here, and publish what passes.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Take the published records of a bundle as results, unchecked.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="The network of a bundle, for --remeasure [default: by its name].", show_default=False
        ),
    ] = None,
    target: options.Target = None,
    as_json: options.AsJson = False,
) -> None:
    """Take in what others measured, as priors.

    That is what they stay until they are measured here. Nothing in the source is believed. Programs are loaded and schedules
    replayed in a process of their own, and a line that cannot be used costs that line. --remeasure builds and runs what the
    source holds: of people whom you know only.
    """
    state = state_of(ctx)
    _require_writable(state)
    if remeasure and trust:
        raise ConfigError("--remeasure and --trust exclude each other", hint="what is measured here needs no trust")
    run = _import_folder if _is_folder(source) else _import_file
    with stdout_to_stderr():
        from bcd_cli.progress import open_progress

        with (
            state.open_registry() as registry,
            open_progress(state.err) as shown,
            state.interrupts.deferred(shown) as progress,
        ):
            report = run(state, source, registry, progress, remeasure=remeasure, trust=trust, model=model, target=target)
    if as_json:
        print_json({"schema": 1, "source": str(source), **report.as_json()})
        return
    from bcd_cli.rendering.interchange import render_import

    state.out.print(render_import(report), crop=False)


def _require_writable(state: State) -> None:
    """Before anything is read.

    Raises:
        ConfigError: The registry is switched off.
        ReadOnly: It is only read.
    """
    if state.settings.read_only:
        raise ReadOnly("the registry is read-only: nothing was imported", hint="leave out --read-only, or unset BCD_READ_ONLY")
    if not state.settings.registry_enabled:
        raise ConfigError("the registry is switched off: it would forget what it is given", hint="unset BCD_REGISTRY")


def _is_folder(source: Path) -> bool:
    try:
        return source.is_dir()
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror or error}") from error


def _import_folder(
    _state: State,
    source: Path,
    registry: Registry,
    progress: ProgressSink,
    *,
    remeasure: bool,
    trust: bool,
    model: str | None,
    target: str | None,
) -> ImportReport:
    if trust or model is not None:
        raise ConfigError("--trust and --model are for bundles; a folder has its own programs", hint="use --remeasure alone")
    from bcd_tuner.imports import import_database
    from bcd_tuner.targets import NATIVE, resolve_target

    return import_database(source, registry, resolve_target(target or NATIVE), progress, measure=remeasure)


def _import_file(
    state: State,
    source: Path,
    registry: Registry,
    progress: ProgressSink,
    *,
    remeasure: bool,
    trust: bool,
    model: str | None,
    target: str | None,
) -> ImportReport:
    if not remeasure and (model is not None or target is not None):
        raise ConfigError("--model and --target say what is measured", hint="add --remeasure")
    from bcd_registry.bundle import read_bundle

    bundle = read_bundle(_read(source))
    spec = _spec(state, bundle, model, target) if remeasure else None
    from bcd_tuner.imports import import_bundle

    return import_bundle(bundle, registry, progress, trust=trust, spec=spec)


def _read(source: Path) -> bytes:
    """The bytes of a bundle; a larger file is not read.

    Raises:
        ConfigError: It is not there, is no plain file, or cannot be read.
    """
    from bcd_registry.bundle import MAX_BUNDLE_BYTES

    try:
        if not source.is_file():
            raise ConfigError(f"{source} is neither a folder nor a file", hint="give a JSONDatabase folder or a bundle")
        with source.open("rb") as file:
            return file.read(MAX_BUNDLE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror or error}") from error


def _spec(state: State, bundle: Bundle, model: str | None, target: str | None) -> NetworkSpec:
    """The network whose programs the bundle's schedules are measured on.

    Raises:
        ConfigError: It is not named, and the configuration file has none of the bundle's name and version.
    """
    if model is None:
        network = bundle.network
        named = state.settings.networks.items()
        model = next((label for label, s in named if (s.name, s.version) == (network.name, network.version)), None)
    if model is None:
        raise ConfigError(
            f"--remeasure needs the network {bundle.network.name!r} itself",
            hint="give its file with --model, or name it in toml",
        )
    return options.resolve(state, model, shape=None, target=target, trials=None, time_budget=None)
