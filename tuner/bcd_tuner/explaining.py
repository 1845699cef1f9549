"""A plan with the reasons: for each task what is closest to it, every field that differs, and what tuning it would cost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bcd_registry.config_file import nearest
from bcd_registry.errors import ConfigError
from bcd_registry.evidence import gather
from bcd_registry.explain import Explanation, explain
from bcd_registry.model import Grade
from bcd_registry.registry import Registry

from .report import SCHEMA, Plan, ProgressSink, TaskPlan

if TYPE_CHECKING:
    from .session import TuneRequest


@dataclass(frozen=True, slots=True)
class ExplainedTask:
    """A task's row of the plan, and why it is as it is."""

    plan: TaskPlan
    explanation: Explanation

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, the plan's fields first."""
        return {**dataclasses.asdict(self.plan), **self.explanation.as_json()}


@dataclass(frozen=True, slots=True)
class ExplainedPlan:
    """A plan, and an explanation of its tasks or of some of them."""

    plan: Plan
    tasks: tuple[ExplainedTask, ...]

    def only(self, task: str) -> ExplainedPlan:
        """With the tasks alone that have the name, or whose workload key begins so.

        Raises:
            ConfigError: There is none.
        """
        named = [t for t in self.tasks if t.plan.name == task]
        found = named or [t for t in self.tasks if task and t.plan.workload_key.startswith(task)]
        if not found:
            close = nearest(task, {t.plan.name for t in self.tasks})
            hint = close if close.startswith("did you mean") else "`explain --json` lists the names and keys of tasks"
            raise ConfigError(f"no task of {self.plan.network} is called {task!r}", hint=hint)
        return dataclasses.replace(self, tasks=tuple(found))

    def as_json(self) -> dict[str, Any]:
        """The object that `explain --json` prints."""
        plan = {field.name: getattr(self.plan, field.name) for field in dataclasses.fields(self.plan) if field.name != "tasks"}
        return {"schema": SCHEMA, "trials": self.plan.trials, **plan, "tasks": [task.as_json() for task in self.tasks]}


def explain_network(
    request: TuneRequest, registry: Registry, *, progress: ProgressSink, clock: Callable[[], float] = time.time
) -> ExplainedPlan:
    """Plan as `tune` would, and explain each task. Nothing is built or measured.

    Args:
        clock: Unix seconds, from which ages count.

    Raises:
        BcdError: See `bcd_tuner.session.plan`.
    """
    from .session import look_up

    prepared, plan = look_up(request, registry, progress=progress)
    matches = [planned.match for planned in prepared.planned]
    evidence = gather(registry, [match.workload for match in matches if match.grade is not Grade.EXACT])
    planner = prepared.planner
    found = explain(matches, evidence, planner.environment, planner.depths, policy=registry.policy, now_s=clock())
    return ExplainedPlan(plan, tuple(map(ExplainedTask, plan.tasks, found)))
