"""What became of the runs that waited for MLflow, for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from bcd_cli.rendering.text import count
from bcd_tuner.tracking import Synced


def render_synced(synced: Synced, ui_command: str) -> RenderableType:
    """What was done; what was set aside was said when it happened.

    Args:
        ui_command: What shows the runs.
    """
    lines = []
    if synced.logged:
        lines.append(f"logged {count(len(synced.logged), 'run')}: {_ids(synced.logged)}")
        lines.append(f"MLflow:  {ui_command}")
    if synced.known:
        lines.append(f"already there: {_ids(synced.known)}")
    if synced.busy:
        lines.append(f"being logged by another process: {_ids(synced.busy)}")
    if synced.set_aside:
        lines.append(f"set aside: {count(len(synced.set_aside), 'file')}")
    return Group(*(Text(line, no_wrap=True, overflow="ignore") for line in lines or ["nothing waits for MLflow"]))


def _ids(run_ids: tuple[str, ...]) -> str:
    return ", ".join(run_id[:8] for run_id in run_ids)
