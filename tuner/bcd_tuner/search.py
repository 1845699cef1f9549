"""DiffusionSearch: candidates diffused from priors and from the best measured so far (Θ'), with a control group that is not.

`TaskSearch` is the engine for one task; `DiffusionSearch` hands it to MetaSchedule as a PySearchStrategy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate, PySearchStrategy

from bcd_registry.model import Decision, Grade, Prior

from .diffusion import SigmaSchedule, diffuse
from .renaming import canonical_sketches
from .space import apply_decisions, decisions_of, match_space, read_space

_MAX_SEED = 2**31 - 1
_ENUMERABLE = 24
_DRY_ATTEMPTS = 6
_ANCHOR_CONTROL = 2.0
_LEAST_WITH_CONTROL = 3
_FAR = 8.0
"""Distance in octaves beyond which priors weigh the same; that of another number of loops is infinite."""


@dataclass(frozen=True, slots=True)
class SearchPolicy:
    """How a task is searched.

    Attributes:
        pool: Candidates generated for each one measured; the cost model chooses among them.
        control_share: Share of a round that is drawn without any prior.
        own_share: Share of the diffused candidates that start from the task's own best, once it has some.
        n_elites: Size of the part of Θ' that the task measured itself.
        mislead_ratios: Priors misled when the best control candidate takes less than this share of the best diffused one's
            latency, after one, two, or three and more control candidates. The fewer, the plainer it must be.
        diffusion: False draws everything without priors and without Θ': for comparison.
    """

    pool: float = 3.0
    control_share: float = 0.125
    own_share: float = 0.7
    n_elites: int = 6
    mislead_ratios: tuple[float, ...] = (0.6, 0.75, 0.9)
    diffusion: bool = True


@dataclass(frozen=True, slots=True)
class Seed:
    """An element of Θ': decisions that candidates are diffused from.

    Attributes:
        decisions: One for each site of the space; None where the prior says nothing.
        weight: Relative chance of being drawn.
        parent_id: The registry's record it is, when it is one.
    """

    space: int
    decisions: tuple[Decision | None, ...]
    weight: float
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class Misled:
    """A prior that was dropped.

    Attributes:
        ratio: Best diffused latency over the best of the control group, above 1.
    """

    prior: Prior
    ratio: float


@dataclass(slots=True)
class Candidate:
    """A schedule that can be measured, and where it came from.

    Attributes:
        sigma: σ it was drawn with; 0.0 for a prior carried over as it is; None in the control group.
        latency_s: Measured median; infinite when it failed; None before.
        run_times_s: The timed runs behind it.
    """

    schedule: Schedule
    sketch: str
    decisions: tuple[Decision, ...]
    space: int
    sigma: float | None
    parent_id: str | None
    latency_s: float | None = None
    run_times_s: tuple[float, ...] = ()
    measure: Any = field(default=None, repr=False)

    @property
    def key(self) -> tuple[int, tuple[Decision, ...]]:
        """What makes two candidates the same."""
        return (self.space, self.decisions)

    def measure_candidate(self) -> MeasureCandidate:
        """TVM's view of it, made once."""
        if self.measure is None:
            self.measure = MeasureCandidate(self.schedule, ArgInfo.from_entry_func(self.schedule.mod, remove_preproc=True))
        return self.measure


Draw = tuple[int, Sequence[Decision | None], float | None, str | None]
Scorer = Callable[[Sequence[MeasureCandidate]], NDArray[np.float64] | None]


class TaskSearch:
    """The search of one task, round by round. Deterministic for a given generator and given measurements.

    Attributes:
        spaces: The task's design spaces.
        best: The fastest candidate measured so far.
        notes: What a person should know: a prior without a matching sketch, a prior that misled.
        misled: The priors that were dropped because they misled; empty as long as they serve.
    """

    def __init__(
        self,
        mod: Any,
        space_schedules: Sequence[Schedule],
        postprocs: Sequence[Any],
        *,
        priors: Sequence[Prior] = (),
        rng: np.random.Generator,
        policy: SearchPolicy | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Match the priors' sketches to the task's own design spaces; `executor` spreads the work over threads."""
        self.spaces = [read_space(schedule) for schedule in space_schedules]
        self.best: Candidate | None = None
        self.notes: list[str] = []
        self.misled: tuple[Misled, ...] = ()
        self._mod, self._postprocs, self._rng = mod, list(postprocs), rng
        self._policy = policy or SearchPolicy()
        self._map: Callable[..., Any] = executor.map if executor else map
        self._seen: set[tuple[int, tuple[Decision, ...]]] = set()
        self._measured: list[Candidate] = []
        self._enumerated = self._enumerate()
        self._sigmas = SigmaSchedule(0.0)
        self._carry: list[Seed] = []
        self._carried_over: list[Candidate] = []
        self._seeds_by_id: dict[str, Seed] = {}
        self._given: list[Prior] = []
        self._anchored = False
        self.add_priors(priors)

    @property
    def has_priors(self) -> bool:
        """Whether anything from outside this task is diffused from."""
        return bool(self._seeds_by_id)

    @property
    def measured(self) -> Sequence[Candidate]:
        """Everything measured so far, in order."""
        return self._measured

    @property
    def size(self) -> float:
        """Number of candidates in all spaces; infinite when it cannot be told."""
        return sum(space.size for space in self.spaces)

    def add_priors(self, priors: Sequence[Prior]) -> None:
        """Diffuse from these, too. Those whose decisions fit no space of the task are left out, and that is noted."""
        if not self._policy.diffusion or not priors:
            return
        matched = [(p, match_space(self.spaces, p.record.sketch, p.record.decisions)) for p in priors]
        fitting = [(prior, fit) for prior, fit in matched if fit is not None]
        for prior, fit in fitting:
            seed = Seed(fit.space, fit.decisions, math.exp(-min(prior.distance, _FAR)), prior.record.id)
            self._seeds_by_id[prior.record.id] = seed
            self._carry.append(seed)
        self._given += [prior for prior, _ in fitting]
        self._anchored = all(prior.grade is Grade.ANCHOR for prior, _ in fitting)
        self._sigmas = SigmaSchedule(min((prior.distance for prior, _ in fitting), default=0.0))
        n_nearest = sum(fit.nearest for _, fit in fitting)
        if not fitting:
            self.notes.append(f"no sketch of the task fits its {len(priors)} priors")
        elif n_nearest:
            self.notes.append(f"{n_nearest} of {len(priors)} priors have another sketch: the nearest one was taken")

    def next_round(self, n: int, score: Scorer) -> list[Candidate]:
        """Up to `n` new candidates to measure, best first by the cost model; empty when the space is exhausted.

        Args:
            n: Candidates wanted.
            score: Predicts a score for each candidate, higher is better; None when it knows nothing yet.
        """
        if self._enumerated is not None:
            return self._pick_enumerated(n, score)
        n_control = n if not self._can_diffuse else math.ceil(self._control_share * n) if n >= _LEAST_WITH_CONTROL else 0
        carried = self._carry_over(min(n - n_control, math.ceil(n / 2)), score)
        diffused = self._pick(self._draw_diffused, n - n_control - len(carried), score)
        control = self._pick(self._draw_control, n - len(carried) - len(diffused), score)
        return [*carried, *diffused, *control]

    @property
    def _can_diffuse(self) -> bool:
        return self._policy.diffusion and (self.has_priors or self.best is not None)

    @property
    def _control_share(self) -> float:
        """Priors of another cluster are trusted less."""
        return self._policy.control_share * (_ANCHOR_CONTROL if self.has_priors and self._anchored else 1.0)

    def _pick_enumerated(self, n: int, score: Scorer) -> list[Candidate]:
        """The priors carried over, then the best by the cost model of what is left of a small space."""
        assert self._enumerated is not None
        carried = self._carry_over(n, score)
        others = self._keep(self._ranked(self._realize(self._enumerated), n - len(carried), score), n - len(carried))
        return [*carried, *others]

    def tell(self, candidates: Sequence[Candidate], latencies_s: Sequence[float]) -> None:
        """Take in what was measured (infinite for a failure): Θ' grows, σ adapts, a misleading prior is dropped."""
        for candidate, latency in zip(candidates, latencies_s, strict=True):
            candidate.latency_s = latency
            self._measured.append(candidate)
            if math.isfinite(latency) and (self.best is None or latency < (self.best.latency_s or math.inf)):
                self.best = candidate
        self._adapt_sigma(candidates)
        self._drop_misleading()

    def _adapt_sigma(self, candidates: Sequence[Candidate]) -> None:
        """σ follows what was measured, and so does the weight of the prior that each candidate goes back to."""
        drawn = [c for c in candidates if c.sigma is not None and c.latency_s and math.isfinite(c.latency_s)]
        if not drawn:
            return
        fastest = min(c.latency_s or math.inf for c in drawn)
        scores = [fastest / (c.latency_s or math.inf) for c in drawn]
        noisy = [(c.sigma, score) for c, score in zip(drawn, scores, strict=True) if c.sigma]
        self._sigmas.update([sigma for sigma, _ in noisy], [score for _, score in noisy])
        mean = sum(scores) / len(scores)
        for candidate, score in zip(drawn, scores, strict=True):
            seed = self._seeds_by_id.get(candidate.parent_id or "")
            if seed is not None:
                weight = seed.weight * math.exp(score - mean)
                self._seeds_by_id[candidate.parent_id or ""] = dataclasses.replace(seed, weight=weight)

    def _drop_misleading(self) -> None:
        """Ordinary search takes over when what was never diffused beats all that goes back to a prior, by a clear margin."""
        control = [c.latency_s or math.inf for c in self._measured if c.sigma is None]
        diffused = [c.latency_s or math.inf for c in self._measured if c.parent_id is not None]
        if not (self.has_priors and control and diffused):
            return
        ratios = self._policy.mislead_ratios
        if min(control) < ratios[min(len(control), len(ratios)) - 1] * min(diffused):
            self._drop_priors(min(diffused) / min(control))

    def _drop_priors(self, ratio: float) -> None:
        self.misled = tuple(Misled(prior, ratio) for prior in self._given)
        self._seeds_by_id.clear()
        self._carry.clear()
        self._carried_over.clear()
        self._given.clear()
        self.notes.append(f"its priors misled ({ratio:.2f}x slower than undiffused): ordinary search took over")

    def _carry_over(self, n: int, score: Scorer) -> list[Candidate]:
        """Priors as they are, each once: no noise, but this workload's extents. The cost model chooses which come first."""
        if self._carry:
            draws = [(seed.space, self._carried(seed), 0.0, seed.parent_id) for seed in self._carry]
            self._carried_over += self._realize(draws)
            self._carry.clear()
        ranked = self._ranked(self._carried_over, n, score)
        self._carried_over = ranked[n:]
        return ranked[:n]

    def _carried(self, seed: Seed) -> tuple[Decision | None, ...]:
        """A prior's decisions moved to this workload's extents, without noise."""
        return diffuse(seed.decisions, self.spaces[seed.space].sites, np.zeros(1), self._rng)[0]

    def _elites(self) -> list[Seed]:
        ranked = sorted((c for c in self._measured if math.isfinite(c.latency_s or math.inf)), key=lambda c: c.latency_s or 0.0)
        elites = ranked[: self._policy.n_elites]
        return [Seed(c.space, c.decisions, (elites[0].latency_s or 1.0) / (c.latency_s or 1.0), c.parent_id) for c in elites]

    def _draw_diffused(self, n: int) -> list[Draw]:
        own, others = self._elites(), list(self._seeds_by_id.values())
        n_own = n if not others else round(n * self._policy.own_share) if own else 0
        return [*self._draw_from(own, n_own), *self._draw_from(others, n - n_own)]

    def _draw_from(self, seeds: Sequence[Seed], n: int) -> list[Draw]:
        if not seeds or n <= 0:
            return []
        weights = np.array([seed.weight for seed in seeds])
        counts = self._rng.multinomial(n, weights / weights.sum())
        draws: list[Draw] = []
        for seed, count in zip(seeds, counts, strict=True):
            sigmas = self._sigmas.draw(int(count), self._rng)
            rows = diffuse(seed.decisions, self.spaces[seed.space].sites, sigmas, self._rng)
            draws += [(seed.space, row, float(s), seed.parent_id) for row, s in zip(rows, sigmas, strict=True)]
        return draws

    def _draw_control(self, n: int) -> list[Draw]:
        spaces = self._rng.integers(len(self.spaces), size=n)
        return [(int(i), (None,) * len(self.spaces[i].sites), None, None) for i in spaces]

    def _pick(self, draw: Callable[[int], list[Draw]], n: int, score: Scorer) -> list[Candidate]:
        """Generate `policy.pool` times as many as wanted and keep those that the cost model likes."""
        pool: list[Candidate] = []
        for _ in range(_DRY_ATTEMPTS):
            if n <= 0 or len(pool) >= n * self._policy.pool:
                break
            pool += self._realize(draw(math.ceil(n * self._policy.pool) - len(pool)))
        return self._keep(self._ranked(pool, n, score), n)

    def _ranked(self, pool: list[Candidate], n: int, score: Scorer) -> list[Candidate]:
        """Best first by the cost model, where more than `n` compete and it knows something."""
        scores = score([c.measure_candidate() for c in pool]) if len(pool) > n > 0 else None
        return pool if scores is None else [pool[i] for i in np.argsort(-scores, kind="stable")]

    def _keep(self, pool: list[Candidate], n: int) -> list[Candidate]:
        """The first `n`; the others may be drawn again later."""
        for candidate in pool[n:]:
            self._seen.discard(candidate.key)
        return pool[:n]

    def _realize(self, draws: Sequence[Draw]) -> list[Candidate]:
        """Apply the draws; those that do not fit, and those seen before, are left out."""
        fresh = [d for d in draws if not self._known(d)]
        seeds = self._rng.integers(1, _MAX_SEED, size=len(fresh))
        candidates = []
        for draw, found in zip(fresh, self._map(self._apply, fresh, seeds), strict=True):
            if found is not None and (draw[0], found[2]) not in self._seen:
                self._seen.add((draw[0], found[2]))
                candidates.append(Candidate(found[0], found[1], found[2], draw[0], draw[2], draw[3]))
        return candidates

    def _known(self, draw: Draw) -> bool:
        return (draw[0], tuple(draw[1])) in self._seen

    def _apply(self, draw: Draw, seed: int) -> tuple[Schedule, str, tuple[Decision, ...]] | None:
        space = self.spaces[draw[0]]
        schedule = apply_decisions(self._mod, space, draw[1], self._postprocs, int(seed))
        return None if schedule is None else (schedule, space.sketch, decisions_of(schedule))

    def _enumerate(self) -> list[Draw] | None:
        """Every candidate, when there are few."""
        if self.size > _ENUMERABLE:
            return None
        return [(i, row, None, None) for i, space in enumerate(self.spaces) for row in space.enumerate()]


PriorsOf = Callable[[Any], Sequence[Prior]]


@derived_object
class DiffusionSearch(PySearchStrategy):  # type: ignore[misc]
    """MetaSchedule's search strategy for Bayesian code diffusion.

    Args:
        priors_of: What to diffuse from, by the task's IRModule, for example `RegistryDatabase.priors_of`. It is asked when the
            task's first round begins, so that what other tasks measured by then can be among it. None searches from nothing.
        policy: See SearchPolicy.
        executor: Threads that apply traces; None applies them one by one.
    """

    def __init__(
        self, priors_of: PriorsOf | None = None, policy: SearchPolicy | None = None, executor: Executor | None = None
    ) -> None:
        super().__init__()
        self._arguments = (priors_of, policy, executor)
        self.search: TaskSearch | None = None
        self._asked = False
        self._schedules: list[Schedule] = []
        self._context: Any = None
        self._cost_model: Any = None
        self._left = self._batch = 0
        self._round: list[Candidate] = []

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._context = context

    def pre_tuning(
        self, max_trials: int, num_trials_per_iter: int, design_spaces: Any, database: Any = None, cost_model: Any = None
    ) -> None:
        """Begin a task; called again for the same task it goes on with what is known."""
        _, policy, executor = self._arguments
        self._left, self._batch, self._cost_model = max_trials, num_trials_per_iter, cost_model
        if self.search is None:
            context, self._schedules = self._context, list(design_spaces)
            self.search = TaskSearch(
                context.mod,
                self._schedules,
                context.space_generator.postprocs,
                rng=np.random.default_rng(int(context.rand_state) & _MAX_SEED),
                policy=policy,
                executor=executor,
            )

    def generate_measure_candidates(self) -> list[MeasureCandidate] | None:
        """The next round; None when the trials are spent or the space is exhausted."""
        assert self.search is not None
        if self._left <= 0:
            return None
        if not self._asked:
            self._ask(self.search)
        self._round = self.search.next_round(min(self._batch, self._left), self._score)
        self._left -= len(self._round)
        return [candidate.measure_candidate() for candidate in self._round] or None

    def notify_runner_results(self, measure_candidates: Any, results: Any) -> None:
        """Tell the engine; a result that is zero, negative, not finite or an error counts as a failure."""
        assert self.search is not None
        self.search.tell(self._round, [latency_of(result) for result in results])

    def post_tuning(self) -> None:
        """Nothing to clean up: what was found stays readable in `search`."""

    def clone(self) -> DiffusionSearch:
        """A fresh strategy with the same settings, for another task."""
        return DiffusionSearch(*self._arguments)

    def _ask(self, search: TaskSearch) -> None:
        """Take in the priors. Their sketches are of canonical modules, and this one may have other names."""
        self._asked = True
        priors_of = self._arguments[0]
        priors = priors_of(self._context.mod) if priors_of else ()
        if not {prior.record.sketch for prior in priors} <= {space.sketch for space in search.spaces}:
            pairs = zip(search.spaces, canonical_sketches(self._context.mod, self._schedules), strict=True)
            search.spaces = [dataclasses.replace(space, sketch=sketch) for space, sketch in pairs]
        search.add_priors(priors)

    def _score(self, candidates: Sequence[MeasureCandidate]) -> NDArray[np.float64] | None:
        if self._cost_model is None or not candidates:
            return None
        return np.asarray(self._cost_model.predict(self._context, list(candidates)))


def latency_of(result: Any) -> float:
    """Median seconds of a RunnerResult; infinite when it failed or is not a positive finite number."""
    if result.error_msg is not None or not result.run_secs:
        return math.inf
    latency = float(np.median([float(s) for s in result.run_secs]))
    return latency if math.isfinite(latency) and latency > 0.0 else math.inf
