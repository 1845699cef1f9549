"""Writes docs/commands.md, the reference of every command, from what `--help` prints: `python -m tests.command_reference`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from bcd_cli.main import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
COMMAND = "python -m tests.command_reference"
PROGRAM = "bcd-registry"

_HEAD = f"""\
# Commands

What `--help` of each command prints. `{COMMAND}` writes this page.
"""


@functools.cache
def root_command() -> Any:
    """The program as a tree of commands."""
    return typer.main.get_command(app)


def iter_commands() -> Iterator[tuple[str, ...]]:
    """The words of every command, `()` for the program itself; a group goes before what is in it."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    return walk(root_command(), ())


def is_group(words: tuple[str, ...]) -> bool:
    """Whether these words only name a group of commands."""
    command = root_command()
    for word in words:
        command = command.commands[word]
    return hasattr(command, "commands")


def help_of(words: tuple[str, ...]) -> str:
    """What `--help` prints on a terminal of 80 columns."""
    result = CliRunner().invoke(app, [*words, "--help"], prog_name=PROGRAM, terminal_width=78, color=False)
    if result.exit_code:
        raise RuntimeError(result.output)
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


def reference() -> str:
    """The page."""
    sections = [f"## {' '.join([PROGRAM, *words])}\n\n```text\n{help_of(words)}\n```\n" for words in iter_commands()]
    return "\n".join([_HEAD, *sections])


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
