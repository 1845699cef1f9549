"""`bcd-registry lock`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options, release
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json
from bcd_registry.errors import BcdError, ConfigError

if TYPE_CHECKING:
    from bcd_registry.lock import Lock

EPILOG = example("bcd-registry lock --model v2", "bcd-registry lock --model v2 -o v2.lock")


def lock(
    ctx: typer.Context,
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="The lock to write.", metavar="FILE")] = Path("bcd.lock"),
    shape: options.Shape = None,
    target: options.Target = None,
    trials: release.Depth = 0,
    as_json: options.AsJson = False,
) -> None:
    """Write down which schedules a network is compiled with.

    A lock is made to be reviewed and kept in git. The same registry gives the same bytes. `compile --frozen` and `tune
    --frozen` then use exactly these.
    """
    state = state_of(ctx)
    spec = options.resolve(state, model, shape=shape, target=target, trials=None, time_budget=None)
    _require_lock(output)
    with release.working(state) as (registry, say):
        from bcd_tuner.published import read_published

        published = read_published(spec, registry, say, trials=trials)
        made = published.lock()
    _write(output, made)
    if as_json:
        print_json({"schema": 1, "file": str(output), "coverage": published.coverage.as_json(), **made.as_json()})
        return
    from bcd_cli.rendering.locks import render_lock
    from bcd_cli.rendering.release import coverage_line

    state.out.print(render_lock(made, str(output), coverage_line(published.coverage)), crop=False)


def _require_lock(path: Path) -> None:
    """Refuse to write over what is no lock; a damaged one may go."""
    from bcd_registry.frozen import load_lock

    if path.is_dir():
        raise ConfigError(f"{path} is a folder", hint="give a file with -o")
    if path.exists():
        try:
            load_lock(path)
        except ConfigError as error:
            raise ConfigError(f"{path} is there, and is not a lock that this release wrote", hint="give another -o") from error
        except BcdError:
            return


def _write(path: Path, made: Lock) -> None:
    """Whole or not at all, with the rights that any new file of this user has."""
    from bcd_registry.lock import write_lock

    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        draft.write_text(write_lock(made), encoding="utf-8", newline="\n")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror or error}", hint="give another file with -o") from error
