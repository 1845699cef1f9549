from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

from bcd_registry.model import Decision, Grade, Prior
from bcd_tuner.diffusion import SIGMAS, TILE
from bcd_tuner.search import Candidate, DiffusionSearch, SearchPolicy, TaskSearch, latency_of
from bcd_tuner.space import read_space
from tests.tuner import tuning_programs as programs

SMALL, LARGE = programs.matmul(16, 16, 16), programs.matmul(64, 32, 128)
ROUND = 16


def search_of(mod: Any, seed: int = 0, postprocs: Sequence[Any] = (), **options: Any) -> TaskSearch:
    context, schedules = programs.context_of(mod)
    every = [*postprocs, *context.space_generator.postprocs]
    return TaskSearch(mod, schedules, every, rng=np.random.default_rng(seed), **options)


def unsure(candidates: Sequence[Any]) -> None:
    """A cost model that knows nothing."""


def latency(candidate: Candidate) -> float:
    """A landscape with one optimum: even tiles, whatever the sketch; seconds."""
    logs = [np.log2(value) for kind, value in candidate.decisions if kind == TILE]
    return 1e-3 * math.exp(0.2 * sum(float(np.abs(log - log.mean()).sum()) for log in logs))


def rounds(search: TaskSearch, n_rounds: int, n: int = ROUND, told: Any = latency) -> list[list[Candidate]]:
    """Several rounds, each told."""
    found = []
    for _ in range(n_rounds):
        candidates = search.next_round(n, unsure)
        search.tell(candidates, [told(c) for c in candidates])
        found.append(candidates)
    return found


def priors_from(source: Any, mod: Any, *, seed: int = 5, best_of: int = 48) -> list[Prior]:
    """The four best of a search of another workload."""
    search = search_of(source, seed)
    measured = [c for found in rounds(search, best_of // ROUND) for c in found]
    best = sorted(measured, key=latency)[:4]
    return [programs.prior_for(mod, source, c.sketch, c.decisions, run=str(i)) for i, c in enumerate(best)]


def keys(found: Sequence[Sequence[Candidate]]) -> list[Any]:
    return [c.key for candidates in found for c in candidates]


def test_no_candidate_comes_twice() -> None:
    found = keys(rounds(search_of(SMALL), 6))
    assert len(found) == len(set(found)) == 6 * ROUND


def test_a_search_from_nothing_begins_without_diffusion() -> None:
    first, second = rounds(search_of(LARGE), 2)
    assert {c.sigma for c in first} == {None}
    assert {c.sigma for c in second} > {None}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16])
def test_every_round_of_three_or_more_has_a_control_group(n: int) -> None:
    search = search_of(LARGE, priors=priors_from(SMALL, LARGE, best_of=16))
    for candidates in rounds(search, 4, n):
        assert len(candidates) == n
        n_control = [c.sigma for c in candidates].count(None)
        assert n_control >= 1 if n >= 3 else n_control == 0
        assert all(c.parent_id is None for c in candidates if c.sigma is None)


def test_priors_of_another_extent_are_tried_as_they_are_and_then_diffused() -> None:
    priors = priors_from(LARGE, SMALL)
    first, second, *_ = rounds(search_of(SMALL, priors=priors), 2)
    carried = [c for c in first if c.sigma == 0.0]
    assert [c.parent_id for c in carried] == [p.record.id for p in priors][: len(carried)]
    assert len(carried) >= 1
    for candidate in [*first, *second]:
        tiles = [value for kind, value in candidate.decisions if isinstance(value, tuple)]
        assert [math.prod(tile) for tile in tiles] == [16, 16, 16]
        assert candidate.sigma in (None, 0.0, *SIGMAS)
    assert {c.parent_id for c in first} - {None} <= {p.record.id for p in priors}


def test_a_carried_prior_keeps_its_inner_tiles() -> None:
    decisions: tuple[Decision, ...] = ((TILE, (2, 2, 2, 4)), (TILE, (1, 2, 1, 8)), (TILE, (4, 4)), ("SampleCategorical", 2))
    _, [schedule, *_] = programs.context_of(SMALL)
    prior = programs.prior_for(LARGE, SMALL, read_space(schedule).sketch, decisions)
    [carried, *_] = search_of(LARGE, priors=[prior]).next_round(ROUND, unsure)
    assert carried.decisions == ((TILE, (4, 2, 2, 4)), (TILE, (2, 2, 1, 8)), (TILE, (32, 4)), ("SampleCategorical", 2))


def test_good_priors_find_the_optimum_sooner() -> None:
    priors = priors_from(SMALL, LARGE, best_of=96)
    warm: list[float] = []
    cold: list[float] = []
    for seed in range(4):
        for best, options in ((warm, {"priors": priors}), (cold, {})):
            search = search_of(LARGE, seed, **options)
            rounds(search, 1)
            assert search.best is not None
            best.append(latency(search.best))
    assert np.mean(warm) < 0.8 * np.mean(cold)


def test_its_own_best_lead_on() -> None:
    """Diffusing from what was measured beats drawing at random at equal trials."""
    diffused, random = [], []
    for seed in range(3):
        search = search_of(LARGE, seed)
        found = rounds(search, 4)
        diffused.append(min(latency(c) for candidates in found for c in candidates))
        other = search_of(LARGE, seed)
        drawn = other.next_round(4 * ROUND, unsure)
        random.append(min(latency(c) for c in drawn))
    assert np.mean(diffused) < np.mean(random)


def test_priors_without_a_space_are_noted_and_left_out() -> None:
    prior = programs.prior_for(SMALL, LARGE, "f" * 64, ((TILE, (2, 2, 2)),))
    search = search_of(SMALL, priors=[prior, prior])
    assert not search.has_priors
    assert search.notes == ["no sketch of the task fits its 2 priors"]
    assert {c.sigma for c in search.next_round(4, unsure)} == {None}


def test_priors_of_another_epilogue_are_used_though_nobody_knows_how_far_they_are() -> None:
    plain, activated = programs.convolution(8, 8), programs.convolution(8, 8, activated=True)
    [source, *_] = search_of(plain).next_round(1, unsure)
    prior = programs.prior_for(activated, plain, source.sketch, source.decisions, grade=Grade.ANCHOR)
    assert prior.distance == math.inf
    search = search_of(activated, priors=[prior])
    assert search.has_priors
    found = [c for candidates in rounds(search, 2, told=lambda c: 1.0) for c in candidates]
    assert len(found) == 2 * ROUND
    assert [c.sigma for c in found if c.parent_id == prior.record.id]


def test_a_prior_that_misleads_is_dropped_and_noted() -> None:
    search = search_of(LARGE, priors=priors_from(SMALL, LARGE, best_of=16))
    rounds(search, 3, told=lambda c: 1e-3 if c.sigma is None else 2e-3)
    assert not search.has_priors
    assert search.notes == ["its priors misled (2.00x slower than undiffused): ordinary search took over"]
    assert [misled.ratio for misled in search.misled] == [2.0] * 4
    after = rounds(search, 1)[0]
    assert len(after) == ROUND


def test_the_fewer_were_not_diffused_the_plainer_it_must_be() -> None:
    """One lucky draw does not refute a prior; one that takes half the time does."""
    for control_s, dropped in ((1.3e-3, False), (1.0e-3, True)):
        search = search_of(LARGE, priors=priors_from(SMALL, LARGE, best_of=16))
        rounds(search, 1, n=4, told=lambda c, s=control_s: s if c.sigma is None else 2e-3)
        assert bool(search.misled) is dropped


def test_a_prior_of_another_sketch_is_diffused_as_far_as_it_goes() -> None:
    decisions: tuple[Decision, ...] = ((TILE, (1, 2, 2, 4)), (TILE, (1, 2, 1, 8)), (TILE, (4, 4)))
    prior = programs.prior_for(SMALL, LARGE, "f" * 64, decisions)
    search = search_of(SMALL, priors=[prior])
    assert search.notes == ["1 of 1 priors have another sketch: the nearest one was taken"]
    [carried, *_] = search.next_round(ROUND, unsure)
    assert carried.sigma == 0.0
    assert carried.decisions[:3] == decisions


def test_priors_that_serve_well_are_diffused_more() -> None:
    """Of two priors, the one whose candidates are measured faster gets most of the candidates."""
    good, bad = (
        programs.prior_for(LARGE, SMALL, read_space(programs.context_of(SMALL)[1][0]).sketch, decisions, run=name)
        for name, decisions in (
            ("good", ((TILE, (2, 2, 2, 2)), (TILE, (2, 2, 2, 2)), (TILE, (4, 4)), ("SampleCategorical", 0))),
            ("bad", ((TILE, (16, 1, 1, 1)), (TILE, (16, 1, 1, 1)), (TILE, (1, 16)), ("SampleCategorical", 0))),
        )
    )
    search = search_of(LARGE, priors=[good, bad], policy=SearchPolicy(own_share=0.0, mislead_ratios=(0.0,)))
    *_, last = rounds(search, 6, told=lambda c: 1e-3 if c.parent_id == good.record.id else 4e-3)
    children = [c.parent_id for c in last if c.parent_id]
    assert children.count(good.record.id) > 3 * children.count(bad.record.id)


def test_without_diffusion_everything_is_drawn() -> None:
    search = search_of(LARGE, priors=priors_from(SMALL, LARGE, best_of=16), policy=SearchPolicy(diffusion=False))
    assert {c.sigma for candidates in rounds(search, 3) for c in candidates} == {None}


def misled_search(seed: int, n: int, *, misled: bool) -> tuple[float, bool]:
    """Best latency after `n` trials, with a prior that is as bad as can be or with none; a fifth more once it is noticed."""
    decisions: tuple[Decision, ...] = (
        (TILE, (1, 1, 1, 64)),
        (TILE, (32, 1, 1, 1)),
        (TILE, (1, 128)),
        ("SampleCategorical", 0),
    )
    prior = programs.prior_for(LARGE, SMALL, read_space(programs.context_of(LARGE)[1][0]).sketch, decisions)
    search = search_of(LARGE, seed, priors=[prior] if misled else [])
    while len(search.measured) < (1.2 * n if search.misled else n):
        rounds(search, 1, n=8)
    assert search.best is not None
    return latency(search.best), bool(search.misled)


def test_a_bad_prior_costs_little() -> None:
    """With at most 20% more trials than a search from nothing, the median is within 5% of it."""
    misled, noticed = zip(*(misled_search(seed, 64, misled=True) for seed in range(12)), strict=True)
    cold, _ = zip(*(misled_search(seed, 64, misled=False) for seed in range(12)), strict=True)
    assert np.median(misled) <= 1.05 * np.median(cold)
    assert sum(noticed) >= 9


def test_a_prior_that_helps_is_kept() -> None:
    search = search_of(LARGE, priors=priors_from(SMALL, LARGE, best_of=16))
    rounds(search, 4, told=lambda c: 2e-3 if c.sigma is None else 1.9e-3)
    assert search.has_priors
    assert search.notes == []


def test_the_same_seed_gives_the_same_search_on_any_number_of_threads() -> None:
    priors = priors_from(SMALL, LARGE, best_of=16)
    with ThreadPoolExecutor(3) as executor:
        found = [
            keys(rounds(search_of(mod, seed, priors=given, executor=threads), 3))
            for seed, threads in ((1, None), (1, executor), (2, None))
            for mod, given in ((LARGE, priors), (programs.softmax(16, 16), []))
        ]
    assert found[:2] == found[2:4]
    assert found[0] != found[4]
    assert found[1] != found[5]


def latency_best(search: TaskSearch) -> float | None:
    return search.best.latency_s if search.best else None


def test_failures_are_never_the_best() -> None:
    search = search_of(SMALL, priors=priors_from(LARGE, SMALL, best_of=16))
    rounds(search, 2, told=lambda c: math.inf)
    assert latency_best(search) is None
    [candidates] = rounds(search, 1, told=lambda c: math.inf)
    assert len(candidates) == ROUND
    last = search.next_round(4, unsure)
    search.tell(last, [math.inf, 3.0, 2.0, math.inf])
    assert rounds(search, 1, told=lambda c: 5.0)
    assert latency_best(search) == 2.0


def test_small_spaces_are_searched_through_and_then_end() -> None:
    search = search_of(programs.total(8, 2))
    assert search.size == 20
    found = keys(rounds(search, 3, n=8))
    assert len(found) == len(set(found)) == 20
    assert search.next_round(8, unsure) == []


def test_a_program_without_decisions_has_one_candidate() -> None:
    search = search_of(programs.relu(8, 16))
    assert [len(candidates) for candidates in rounds(search, 2, n=8, told=lambda c: 1.0)] == [1, 0]


class RefuseFirst:
    """A postprocessor that refuses so many schedules."""

    def __init__(self, n: int) -> None:
        self.n = n

    def apply(self, schedule: Any) -> bool:
        self.n -= 1
        return self.n < 0


def test_refused_candidates_do_not_end_a_small_space() -> None:
    search = search_of(programs.total(8, 2), postprocs=[RefuseFirst(10)])
    sizes = [len(candidates) for candidates in rounds(search, 4, n=8, told=lambda c: 1.0)]
    assert sizes == [8, 8, 4, 0]  # the ten that were refused once are tried again


def test_a_space_too_large_to_list_ends_too() -> None:
    search = search_of(programs.total(8, 4))
    sizes = [len(candidates) for candidates in rounds(search, 6, told=lambda c: 1.0)]
    assert sizes[-1] == 0
    assert sum(sizes) <= search.size == 28


class RefuseDiffused:
    """A postprocessor that refuses what does not have its outermost tile at 1."""

    def apply(self, schedule: Any) -> bool:
        inst = next(i for i in schedule.trace.insts if i.kind.name == TILE)
        return int(schedule.trace.get_decision(inst)[3]) != 16


def test_a_round_is_full_though_nothing_that_is_diffused_fits() -> None:
    decisions: tuple[Decision, ...] = ((TILE, (1, 1, 1, 16)), (TILE, (1, 1, 1, 16)), (TILE, (1, 16)), ("SampleCategorical", 0))
    _, [schedule, *_] = programs.context_of(SMALL)
    prior = programs.prior_for(SMALL, SMALL, read_space(schedule).sketch, decisions, grade=Grade.STALE)
    search = search_of(SMALL, postprocs=[RefuseDiffused()], priors=[prior])
    for candidates in rounds(search, 3, told=lambda c: math.inf):
        assert len(candidates) == ROUND


def test_the_cost_model_chooses_among_more_than_are_measured() -> None:
    search = search_of(LARGE)
    offered: list[Any] = []

    def score(candidates: Sequence[Any]) -> Any:
        offered.extend(candidates)
        return np.array([7.0, 1.0, 5.0, 2.0, 9.0, 0.0, 8.0, 3.0, 4.0, 6.0, 10.0, 11.0])

    chosen = search.next_round(4, score)
    assert [c.measure_candidate() for c in chosen] == [offered[i] for i in (11, 10, 4, 6)]


def test_what_was_not_chosen_may_come_again() -> None:
    search = search_of(programs.total(8, 4))
    found = keys(rounds(search, 3, n=8, told=lambda c: 1.0))
    assert len(found) == len(set(found)) == 24


@derived_object
class FakeCostModel(PyCostModel):  # type: ignore[misc]
    """Likes the last candidates; remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.n_predicted = self.n_updated = 0

    def load(self, path: str) -> None: ...

    def save(self, path: str) -> None: ...

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        self.n_updated += len(candidates)

    def predict(self, context: Any, candidates: Any) -> Any:
        self.n_predicted += len(candidates)
        return np.arange(len(candidates), dtype=np.float64)


@derived_object
class FakeBuilder(PyBuilder):  # type: ignore[misc]
    """Artifacts that are empty folders, for TVM to remove."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def build(self, build_inputs: Any) -> Any:
        return [BuilderResult(str(Path(tempfile.mkdtemp(dir=self.folder)) / "artifact"), None) for _ in build_inputs]


@derived_object
class Measured(PyRunnerFuture):  # type: ignore[misc]
    def __init__(self, measured: RunnerResult) -> None:
        super().__init__()
        self.measured = measured

    def done(self) -> bool:
        return True

    def result(self) -> RunnerResult:
        return self.measured


@derived_object
class FakeRunner(PyRunner):  # type: ignore[misc]
    """Every other program fails."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def run(self, runner_inputs: Any) -> Any:
        return [self._measured() for _ in runner_inputs]

    def _measured(self) -> Any:
        self.n += 1
        return Measured(RunnerResult(None, "broken") if self.n % 2 else RunnerResult([1e-3 * self.n], None))


def test_metaschedule_asks_it_for_candidates_and_tells_it_what_came_of_them() -> None:
    priors = priors_from(SMALL, LARGE, best_of=16)
    strategy = DiffusionSearch(lambda mod: priors)
    context, spaces = programs.context_of(LARGE, search_strategy=strategy)
    model = FakeCostModel()
    strategy = context.search_strategy
    strategy.pre_tuning(10, 4, spaces, None, model)
    sizes = []
    while (candidates := strategy.generate_measure_candidates()) is not None:
        sizes.append(len(candidates))
        strategy.notify_runner_results(
            candidates, [RunnerResult([1e-3, 2e-3, 3e-3], None), *[RunnerResult(None, "broken")] * (len(candidates) - 1)]
        )
    strategy.post_tuning()
    assert sizes == [4, 4, 2]


def test_metaschedule_tunes_with_it(tmp_path: Path) -> None:
    strategy, model = DiffusionSearch(), FakeCostModel()
    database = ms.tune_tir(
        LARGE,
        programs.TARGET,
        str(tmp_path),
        max_trials_global=12,
        num_trials_per_iter=4,
        builder=FakeBuilder(tmp_path),
        runner=FakeRunner(),
        strategy=strategy,
        cost_model=model,
        database="memory",
        num_tuning_cores=2,
    )
    assert len(database.get_all_tuning_records()) == 12
    assert model.n_updated == 12
    assert model.n_predicted > 12


def test_a_clone_has_the_settings_and_nothing_else() -> None:
    asked: list[Any] = []

    def priors_of(mod: Any) -> Sequence[Prior]:
        asked.append(mod)
        return ()

    strategy = DiffusionSearch(priors_of)
    clone = strategy.clone()
    for each in (strategy, clone):
        context, spaces = programs.context_of(SMALL)
        each._initialize_with_tune_context(context)
        each.pre_tuning(2, 2, spaces)
        assert len(each.generate_measure_candidates() or ()) == 2
        assert each.generate_measure_candidates() is None
    assert len(asked) == 2


def test_a_second_start_goes_on() -> None:
    strategy = DiffusionSearch()
    context, spaces = programs.context_of(SMALL)
    strategy._initialize_with_tune_context(context)
    seen = []
    for _ in range(2):
        strategy.pre_tuning(4, 4, spaces)
        candidates = strategy.generate_measure_candidates() or []
        seen += [str(c.sch.trace) for c in candidates]
        strategy.notify_runner_results(candidates, [RunnerResult([1e-3], None)] * 4)
    assert len(set(seen)) == 8


@pytest.mark.parametrize(
    ("run_secs", "error", "expected"),
    [
        ([3e-3, 1e-3, 2e-3], None, 2e-3),
        ([1e-3], "late error", math.inf),
        (None, "broken", math.inf),
        ([], None, math.inf),
        ([0.0], None, math.inf),
        ([-1.0], None, math.inf),
        ([math.nan], None, math.inf),
        ([math.inf], None, math.inf),
    ],
)
def test_a_result_that_is_no_latency_is_a_failure(run_secs: Any, error: str | None, expected: float) -> None:
    assert latency_of(SimpleNamespace(run_secs=run_secs, error_msg=error)) == expected
