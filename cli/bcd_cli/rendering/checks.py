"""What `doctor` found, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from bcd_cli.checks import Check
from bcd_cli.rendering.tables import plain_table

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def render_checks(checks: Sequence[Check]) -> RenderableType:
    """One row a check, hints below what they belong to."""
    table = plain_table(expand=False)
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        found = Text(check.detail)
        if check.hint and check.status != "ok":
            found.append(f"\nhint: {check.hint}", style="italic")
        table.add_row(Text(check.status, style=_STYLES[check.status]), check.name, found)
    counts = Counter(check.status for check in checks)
    summary = ", ".join(f"{counts[status]} {status}" for status in ("ok", "warn", "fail") if counts[status])
    return Group(table, "", Text(summary, style="bold"))
