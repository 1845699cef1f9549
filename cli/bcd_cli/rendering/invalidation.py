"""What can be taken back, what was, and what is served again, for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from bcd_cli.rendering.listings import facts_table, network_title
from bcd_cli.rendering.text import count
from bcd_registry.invalidation import MOST_LOOKED_UP, Recalled
from bcd_registry.model import Event, Grade

_SHOWN_NETWORKS = 8


def render_recalled(recalled: Recalled, event: Event | None, command: str) -> RenderableType:
    """What can be taken back, or was.

    Args:
        event: What took it back; None when nothing was done.
        command: What does it.
    """
    before = f"{count(recalled.n_before, 'record')} taken back before"
    if not recalled.records:
        return Text(f"nothing to take back{f'; {before}' if recalled.n_before else ''}")
    records = f"{len(recalled.records)} of {count(recalled.n_workloads, 'workload')}, {recalled.n_published} published"
    facts = {"records": records}
    if recalled.n_descendants:
        facts["descendants"] = f"{recalled.n_descendants} of them, diffused from the others"
    facts["networks"] = _networks(recalled)
    if recalled.n_published:
        facts["served then"] = _grades(recalled)
    if recalled.n_before:
        facts["before"] = before
    if event is not None:
        facts |= {"reason": event.reason, "event": event.id}
        undo = _command(f"this undoes it:\n  bcd-registry restore {event.id[:12]}")
        return Group(Text("taken back", style="bold"), facts_table(facts), "", undo)
    how = _command(f"nothing was changed; this does it:\n  {command}")
    return Group(Text("can be taken back", style="bold"), facts_table(facts), "", how)


def render_restored(event: Event) -> RenderableType:
    """What is served again."""
    return Text(f"{count(len(event.records), 'record')} restored: {event.reason}")


def _networks(recalled: Recalled) -> str:
    titles = [f"{network_title(name, version)}{' (pinned)' if pinned else ''}" for name, version, pinned in recalled.networks]
    more = len(titles) - _SHOWN_NETWORKS
    return ", ".join([*titles[:_SHOWN_NETWORKS], *([f"{more} more"] if more > 0 else [])]) or "of none that is stored"


def _grades(recalled: Recalled) -> str:
    """What a lookup in the same environment answers then."""
    if recalled.grades is None:
        return f"not looked up: more than {MOST_LOOKED_UP} workloads"
    words = {Grade.EXACT: "another published record", Grade.COLD: "nothing"}
    return ", ".join(f"{n} {grade} ({words.get(grade, 'a prior')})" for grade, n in recalled.grades.items())


def _command(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ignore")
