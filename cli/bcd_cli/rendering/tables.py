"""The one look of tables."""

from __future__ import annotations

from rich.table import Table


def plain_table(*, expand: bool = True) -> Table:
    """A table without lines: it survives a log file and a copy into a ticket."""
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=expand, header_style="bold")
