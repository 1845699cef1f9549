from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import postproc

from bcd_tuner import worker_jobs
from bcd_tuner.checking import Case, arguments_of, compare, compare_many, measure_modules
from bcd_tuner.targets import resolve_target
from bcd_tuner.worker_checks import difference
from bcd_tuner.worker_process import JobError
from bcd_tuner.workers import WarmPool
from tests.tuner import worker_programs as programs

TARGET = resolve_target("native", cores=2)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPool]:
    lock = tmp_path_factory.mktemp("lock") / "measuring.lock"
    with WarmPool(TARGET, build_timeout_s=30, run_timeout_s=1, lock_path=lock, min_repeat_ms=2) as pool:
        yield pool


def scheduled(mod: Any, *, split: int = 8) -> Any:
    """The program with its outermost loop split and run in parallel."""
    schedule = Schedule(mod)
    [block] = schedule.get_child_blocks(schedule.get_sblock("root"))
    outer, _ = schedule.split(schedule.get_loops(block)[0], [None, split])
    schedule.parallel(outer)
    return schedule.mod


def test_a_right_schedule_is_equal_and_both_are_timed_in_turns(pool: WarmPool) -> None:
    result = compare(pool, programs.matmul, scheduled(programs.matmul), repeats=4)
    assert result.equal, result.error
    assert result.error == ""
    assert len(result.reference_s) == len(result.tuned_s) == 4
    assert all(0 < t < 1 for t in (*result.reference_s, *result.tuned_s))


def test_one_wrong_row_is_found(pool: WarmPool) -> None:
    wrong = programs.elementwise("a[v, w] * T.if_then_else(v == 63, T.float32(2.01), T.float32(2))")
    result = compare(pool, programs.scale, wrong)
    assert not result.equal
    assert "argument 1 (float32) differs" in result.error
    assert result.max_rel_error == pytest.approx(0.01, rel=0.9)
    assert result.reference_s == result.tuned_s == ()


def test_what_is_not_written_is_found(pool: WarmPool) -> None:
    partly = programs.calling("getpid")
    assert not compare(pool, programs.scale, partly).equal


def test_not_a_number_in_both_is_equal_but_does_not_hide_the_rest(pool: WarmPool) -> None:
    logarithm, twice = programs.elementwise("T.sqrt(a[v, w])"), programs.elementwise("T.sqrt(a[v, w]) * T.float32(2)")
    assert compare(pool, logarithm, scheduled(logarithm)).equal
    assert not compare(pool, logarithm, twice).equal
    never = programs.elementwise("T.sqrt(T.fabs(a[v, w]) * T.float32(-1) - T.float32(1))")
    assert compare(pool, never, never).equal


def test_integers_are_compared_exactly(pool: WarmPool) -> None:
    same, off_by_one = (programs.elementwise(f"a[v, w] + {n}", "int32") for n in (1, 2))
    assert compare(pool, same, scheduled(same)).equal
    result = compare(pool, same, off_by_one)
    assert not result.equal
    assert result.max_abs_error == 1


def test_indices_stay_within_what_they_index(pool: WarmPool) -> None:
    assert compare(pool, programs.gather, scheduled(programs.gather)).equal


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats(pool: WarmPool, dtype: str) -> None:
    program = programs.elementwise(f'a[v, w] * T.Cast("{dtype}", T.float32(3))', dtype)
    assert compare(pool, program, scheduled(program)).equal


@pytest.mark.parametrize(
    ("mod", "said"), [(programs.abort, "SIGABRT"), (programs.wait_for_ever, "timed out"), (programs.unknown_symbol, "no_such")]
)
def test_programs_that_misbehave_are_unequal_with_a_reason(pool: WarmPool, mod: Any, said: str) -> None:
    bad, good = compare_many(pool, [Case(programs.scale, mod), Case(programs.scale, scheduled(programs.scale))])
    assert not bad.equal
    assert said in bad.error
    assert good.equal, good.error


def test_other_weight_layouts_are_compared_with_and_timed_without_the_rewriting(pool: WarmPool) -> None:
    schedule = Schedule(programs.matmul)
    block = schedule.get_sblock("matmul")
    i, j, k = schedule.get_loops(block)
    outer, inner = schedule.split(j, [None, 16])
    schedule.reorder(outer, i, k, inner)
    assert postproc.RewriteLayout().apply(schedule)
    tuned = schedule.mod
    assert arguments_of(tuned, without_rewrite=True) != arguments_of(tuned, without_rewrite=False)
    result = compare(pool, programs.matmul, tuned)
    assert result.equal, result.error
    assert len(result.tuned_s) == 5


def test_modules_are_timed_as_they_are(pool: WarmPool) -> None:
    good, bad, gather = measure_modules(pool, [programs.scale, programs.abort, programs.gather])
    assert isinstance(good, tuple)
    assert isinstance(bad, JobError)
    assert isinstance(gather, tuple)


def buffers(*values: float, dtype: str = "float32") -> list[Any]:
    return [np.array(values, dtype=dtype)]


@pytest.mark.parametrize(
    ("expected", "found", "equal"),
    [
        (buffers(1, 2, 3), buffers(1, 2, 3.0001), True),
        (buffers(1, 2, 3), buffers(1, 2, 3.01), False),
        (buffers(1e6, 1e-3), buffers(1e6, 2e-3), True),
        (buffers(np.nan, 1), buffers(np.nan, 1), True),
        (buffers(np.nan, 1), buffers(0, 1), False),
        (buffers(0, 1), buffers(np.nan, 1), False),
        (buffers(np.inf, 1), buffers(np.inf, 1), True),
        (buffers(np.inf, 1), buffers(-np.inf, 1), False),
        (buffers(0, 0), buffers(0, 1e-9), False),
        (buffers(), buffers(), True),
        (buffers(1, 2, dtype="float16"), buffers(1, 2.01, dtype="float16"), True),
        (buffers(1, 2, dtype="int64"), buffers(1, 3, dtype="int64"), False),
    ],
)
def test_difference(expected: list[Any], found: list[Any], equal: bool) -> None:
    result = difference(expected, found)
    assert result.equal is equal
    assert bool(result.error) is not equal


@dataclass
class Timer:
    """Stands in for a loaded module whose timer answers `results`."""

    results: Sequence[float]

    def __getitem__(self, name: str) -> Any:
        return lambda: None

    def time_evaluator(self, *args: Any, **options: Any) -> Any:
        return lambda: SimpleNamespace(results=self.results)


@pytest.mark.parametrize("results", [(0.0,), (-1.0,), (float("nan"), 1.0), (float("inf"),), ()])
def test_impossible_times_are_errors(results: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="not positive"):
        worker_jobs.timed(Timer(results), "main", [], worker_jobs.Evaluation(3, 1.0))


def test_arguments_are_valid_and_the_same_for_a_seed() -> None:
    info = (("float32", (100_000,)), ("int64", (50,)), ("uint8", (50,)), ("bool", (50,)), ("bfloat16", (4,)), ("float32", ()))
    first, second = (worker_jobs.make_arguments(info, {1: 3}, np.random.default_rng(7)) for _ in range(2))
    for a, b, (dtype, shape) in zip(first, second, info, strict=True):
        assert (str(a.dtype), a.shape) == (dtype, shape)
        assert np.array_equal(a, b)
    assert set(first[1].tolist()) == {0, 1, 2}
    assert np.isfinite(first[0]).all()
    assert np.abs(first[0]).max() > 3
    unknown = worker_jobs.make_arguments((("int32", (100,)),), None, np.random.default_rng(7))
    assert set(unknown[0].tolist()) == {0, 1}
