"""One schedule for every task, nothing measured: from an exact record, a prior carried over, or the cost model alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.s_tir.meta_schedule import TuneContext
from tvm.target import Target

from bcd_registry.model import Grade
from bcd_tuner.cost_model import candidate_features
from bcd_tuner.latency_model import LatencyModel
from bcd_tuner.plan import PlannedTask
from bcd_tuner.prepare import Prepared
from bcd_tuner.search import Candidate, TaskSearch

_LEAST = 16
"""Candidates to choose among, at least."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What a task gets.

    Attributes:
        schedule: None leaves the task untuned.
        origin: `exact`; `carried`, a prior moved to the task's extents; `diffused` from one; `model`, what the cost model likes
            best of random candidates, where no prior fits; `untuned`.
    """

    schedule: Any
    origin: str


def guess_tasks(prepared: Prepared, target: Target, model: LatencyModel, executor: Executor, seed: int) -> dict[str, Guess]:
    """A guess for every task, by workload key."""
    guesses = {}
    for planned in prepared.planned:
        key = planned.task.workload.key
        if planned.match.grade is Grade.EXACT:
            reused = prepared.reused.get(key)
            guesses[key] = Guess(reused, "exact" if reused is not None else "untuned")
        else:
            guesses[key] = guess_task(planned, prepared.module(key), target, model, executor, seed)
    return guesses


def guess_task(planned: PlannedTask, mod: Any, target: Target, model: LatencyModel, executor: Executor, seed: int) -> Guess:
    """Priors as they are go before diffused candidates, those before random ones; the cost model chooses among equals."""
    context = TuneContext(mod=mod, target=target, space_generator="post-order-apply", task_name=planned.task.name)
    search = TaskSearch(
        mod,
        list(context.generate_design_space()),
        list(context.space_generator.postprocs),
        priors=planned.priors,
        rng=np.random.default_rng([seed, int(planned.task.workload.key[:12], 16)]),
        executor=executor,
    )

    def score(measure: Sequence[Any]) -> NDArray[np.float64] | None:
        return model.predict(candidate_features(context, measure), planned.task.workload.cluster) if measure else None

    candidates = search.next_round(max(_LEAST, 2 * len(planned.priors)), score)
    for origin, group in _groups(candidates):
        scores = score([c.measure_candidate() for c in group])
        if scores is None and origin == "model":
            break
        return Guess(group[0 if scores is None else int(np.argmax(scores))].schedule, origin)
    return Guess(None, "untuned")


def _groups(candidates: Sequence[Candidate]) -> list[tuple[str, list[Candidate]]]:
    """Candidates by where they come from, those to prefer first, empty groups left out."""
    groups = {
        "carried": [c for c in candidates if c.sigma == 0.0],
        "diffused": [c for c in candidates if c.sigma],
        "model": [c for c in candidates if c.sigma is None],
    }
    return [(origin, group) for origin, group in groups.items() if group]
