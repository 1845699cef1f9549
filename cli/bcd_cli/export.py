"""`bcd-registry export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.networks import name_and_version
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json, stdout_to_stderr
from bcd_registry.errors import ConfigError

if TYPE_CHECKING:
    from bcd_registry.registry import Registry

EPILOG = example("bcd-registry export --model v1 tuning-logs", "bcd-registry export --model v1 --bundle ppocr-det-v4.bcd")

_FOR_OTHERS = 0o644
"""A bundle is made to be given away."""


def export(
    ctx: typer.Context,
    model: options.Model,
    folder: Annotated[
        Path | None,
        typer.Argument(help="Where TVM's JSONDatabase is written: a new folder.", show_default=False),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Write one file instead, for `import` elsewhere.", metavar="FILE", show_default=False),
    ] = None,
    shape: options.Shape = None,
    target: options.Target = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the published schedules of a network.

    Into a folder for stock TVM, or a bundle for another registry. TVM's MetaScheduleApplyDatabase finds them after the
    lowering of `bcd_tuner.tasks.lower`. A bundle is of a version that was tuned, with what is published in every
    environment.
    """
    state = state_of(ctx)
    if (folder is None) == (bundle is None):
        raise ConfigError("it is not said where to", hint="give a FOLDER, or --bundle FILE")
    if folder is not None:
        _export_folder(state, model, folder, shape=shape, target=target, as_json=as_json)
    elif shape or target:
        raise ConfigError(
            "a bundle is of a version as it was tuned: --shape and --target don't change it", hint="leave them out"
        )
    elif bundle is not None:
        _export_bundle(state, model, bundle, as_json=as_json)


def _export_folder(
    state: State, model: str, folder: Path, *, shape: list[str] | None, target: str | None, as_json: bool
) -> None:
    spec = options.resolve(state, model, shape=shape, target=target, trials=None, time_budget=None)
    with stdout_to_stderr():
        from bcd_cli.progress import open_progress
        from bcd_tuner.exports import export_database

        with (
            state.open_registry() as registry,
            open_progress(state.err) as shown,
            state.interrupts.deferred(shown) as progress,
        ):
            report = export_database(spec, registry, folder, progress)
    if as_json:
        print_json({"schema": 1, "folder": str(folder), **report.as_json()})
        return
    from bcd_cli.rendering.interchange import render_export

    state.out.print(render_export(report, folder), crop=False)


def _export_bundle(state: State, model: str, path: Path, *, as_json: bool) -> None:
    from bcd_cli.rendering.interchange import render_bundle
    from bcd_registry.bundle import pack_bundle
    from bcd_registry.exchange import bundle_of

    if path.exists():
        raise ConfigError(f"{path} is there already", hint="give a new name, or remove it")
    with state.open_registry() as registry:
        found, left_out = bundle_of(registry, *_chosen(model, state, registry))
    for line in left_out:
        state.err.print(line, highlight=False, markup=False)
    data = pack_bundle(found)
    _write(path, data)
    if as_json:
        counts = {"tasks": len(found.network.tasks), "records": len(found.records), "environments": len(found.environments)}
        print_json({"schema": 1, "file": str(path), "bytes": len(data), **counts, "left_out": left_out})
        return
    state.out.print(render_bundle(found, path, len(data)), crop=False)


def _chosen(model: str, state: State, registry: Registry) -> tuple[str, str]:
    """Name and version of what `--model` means, here also NAME or NAME:VERSION of a tuned one."""
    if model.startswith("package:") or Path(model).is_file():
        spec = options.resolve(state, model, shape=None, target=None, trials=None, time_budget=None)
        return spec.name, spec.version
    return name_and_version(model, state, registry)


def _write(path: Path, data: bytes) -> None:
    from bcd_registry.folders import write_whole

    try:
        write_whole(path, data, temporary=path.parent, prefix=".export-")
        path.chmod(_FOR_OTHERS)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}", hint="give another place") from error
