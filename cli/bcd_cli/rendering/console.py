"""Consoles of rich as this program uses them."""

from __future__ import annotations

from rich.console import Console


class _Console(Console):
    """A console that leaves a closed pipe to the caller; rich itself would end the process with status 1."""

    def on_broken_pipe(self) -> None:
        """Pass the error on: rich calls this while it handles it."""
        raise  # noqa: PLE0704 - always inside rich's own except block


def make_console(*, stderr: bool, width: int | None = None) -> Console:
    """A console without guesses about what to colour.

    Args:
        width: Columns; None for the terminal's own, or 80 where there is none.
    """
    return _Console(stderr=stderr, highlight=False, width=width, emoji=False)
