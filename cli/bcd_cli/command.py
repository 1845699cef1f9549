"""How every command runs: the one place where errors become lines and exit codes."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from bcd_cli.interrupts import INTERRUPTED
from bcd_cli.state import State, state_of
from bcd_registry.errors import BcdError, StoreUnavailable
from bcd_registry.folders import FULL

FAILED = 5


class Command(TyperCommand):
    """A command whose errors end in one line, a hint and a documented exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command's function."""
        state = state_of(ctx)
        _set_up_logging(state)
        try:
            with state.interrupts.handled():
                result = super().invoke(ctx)
                if sys.stdout is not None:  # closed by the caller
                    sys.stdout.flush()
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            _say("interrupted", "nothing is lost that the registry holds; run the same command again")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _drop_output()  # `| head` has seen enough
            raise typer.Exit(0) from None
        except BcdError as error:
            _show_debug(state)
            _say(f"error: {error.message}", error.hint)
            raise typer.Exit(error.exit_code) from None
        except Exception as error:  # noqa: BLE001 - the last line of defence
            _show_debug(state)
            if isinstance(error, OSError) and error.errno in FULL:
                if not error.filename:  # it was a write, and may have been one to standard output
                    _drop_output()
                full = error.filename or "the output, the home or temporary files"
                _say(f"error: no space left for {full}", "free some space, then run the command again")
                raise typer.Exit(StoreUnavailable.exit_code) from None
            where = _write_traceback(state)
            _say(f"error: {type(error).__name__}: {_one_line(error)}", f"this is a bug; the traceback is in {where}")
            raise typer.Exit(FAILED) from None
        return result


def example(*lines: str) -> str:
    """The end of a command's help: what to type."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def _say(line: str, hint: str = "") -> None:
    typer.echo(" ".join(line.splitlines()), err=True)  # a name that a user gave may hold a line break
    if hint:
        typer.echo(f"hint: {hint}", err=True)


def _drop_output() -> None:
    """Write no more: what is buffered cannot be written, and the interpreter would complain when it flushes at exit."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - lives until exit


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."


def _show_debug(state: State) -> None:
    if state.debug:
        traceback.print_exc()


def _write_traceback(state: State) -> Path:
    """Write the traceback under the home folder, or where it can be written at all."""
    name = time.strftime("error-%Y%m%d-%H%M%S.log", time.gmtime())
    text = traceback.format_exc()
    with contextlib.suppress(BcdError, OSError):
        folder = state.settings.home / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(text, encoding="utf-8")
        return path
    descriptor, path_text = tempfile.mkstemp(prefix="bcd-registry-", suffix=".log")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(path_text)


def _set_up_logging(state: State) -> None:
    """Warnings of our own packages as lines on stderr; with --debug everything they say."""
    handler = _ConsoleHandler(state)
    for name in ("bcd_registry", "bcd_tuner", "bcd_cli"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.DEBUG if state.debug else logging.WARNING)
        logger.propagate = False


class _ConsoleHandler(logging.Handler):
    """Prints through the console that draws the progress, so that lines don't tear it."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        self._state.err.print(f"{record.levelname.lower()}: {record.getMessage()}", markup=False, soft_wrap=True)
