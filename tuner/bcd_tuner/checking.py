"""Checking winners against the untuned programs, and timing programs that are not candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm.ir import IRModule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo as TvmArgInfo
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.target import Target

from bcd_tuner.targets import untuned_target
from bcd_tuner.worker_checks import Comparison, Programs
from bcd_tuner.worker_checks import compare as compare_in_worker
from bcd_tuner.worker_jobs import ArgInfo
from bcd_tuner.worker_process import JobError
from bcd_tuner.workers import BuildJob, RunJob, WarmPool, args_of, remove_files

_COMPARE_RUNS = 6
"""A comparison runs two programs several times: so many run timeouts are allowed for it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A winner to check.

    Attributes:
        reference: The untuned module.
        tuned: The scheduled module, with the blocks that lay weights out anew, so that it takes the same arguments.
        timed: What to time instead of `tuned`; None is `tuned` without those blocks, as it is measured.
    """

    reference: IRModule
    tuned: IRModule
    timed: IRModule | None = None


def compare(
    pool: WarmPool,
    reference_mod: IRModule,
    tuned_mod: IRModule,
    timed_mod: IRModule | None = None,
    *,
    seed: int = 0,
    repeats: int = 5,
) -> Comparison:
    """Compares the outputs of one winner with the untuned program's, then times both in turns; see `compare_many`."""
    return compare_many(pool, [Case(reference_mod, tuned_mod, timed_mod)], seed=seed, repeats=repeats)[0]


def compare_many(pool: WarmPool, cases: Sequence[Case], *, seed: int = 0, repeats: int = 5) -> list[Comparison]:
    """Checks winners; all of their programs are built first, on all build workers.

    A program that cannot be built, crashes or hangs makes its case unequal, with the reason in `error`.

    Args:
        seed: Of the inputs: floats from a normal distribution, integers within the bounds of what they index.
        repeats: Timed samples of each program.
    """
    plans = [_Plan.of(case, pool.target) for case in cases]
    built = iter(pool.build([job for plan in plans for job in plan.jobs]))
    for plan in plans:
        plan.take(built)
    ready = [plan for plan in plans if not plan.error]
    calls = [(compare_in_worker, (plan.programs(), seed, repeats, pool.evaluation.min_repeat_ms)) for plan in ready]
    results = iter(pool.call_runner(calls, _COMPARE_RUNS * pool.run_timeout_s))
    for plan in plans:
        for artifact in plan.artifacts:
            remove_files(artifact)
    return [Comparison(False, error=plan.error) if plan.error else _as_comparison(next(results)) for plan in plans]


def measure_modules(pool: WarmPool, mods: Sequence[IRModule]) -> list[tuple[float, ...] | JobError]:
    """Times untuned modules; for each the seconds of one run, a figure a sample, or why there is none."""
    built = pool.build([BuildJob(mod, untuned_target(pool.target)) for mod in mods])
    jobs = [
        RunJob(artifact, arguments_of(mod, without_rewrite=True))
        for mod, artifact in zip(mods, built, strict=True)
        if not isinstance(artifact, JobError)
    ]
    times = iter(pool.run(jobs))
    return [artifact if isinstance(artifact, JobError) else next(times) for artifact in built]


def arguments_of(mod: IRModule, *, without_rewrite: bool) -> tuple[ArgInfo, ...]:
    """Arguments of a module's entry function.

    Args:
        without_rewrite: As they are once the blocks that lay weights out anew are removed.
    """
    return args_of(TvmArgInfo.from_entry_func(mod, remove_preproc=without_rewrite))


@dataclass(slots=True)
class _Plan:
    """One case on its way: what to build, and what came of it."""

    case: Case
    jobs: list[BuildJob]
    timed: IRModule
    artifacts: list[str] = field(default_factory=list)
    error: str = ""

    @classmethod
    def of(cls, case: Case, target: Target) -> _Plan:
        reference = BuildJob(case.reference, untuned_target(target), strip_layout_rewrite=False)
        jobs = [reference, BuildJob(case.tuned, strip_layout_rewrite=False)]
        timed = case.tuned if case.timed is None else case.timed
        if case.timed is not None or _rewrites_layout(case.tuned):
            jobs.append(BuildJob(timed))
        return cls(case, jobs, timed)

    def take(self, built: Iterator[str | JobError]) -> None:
        results = [next(built) for _ in self.jobs]
        self.artifacts = [r for r in results if not isinstance(r, JobError)]
        failed = [
            f"the {what} program: {r.message}"
            for what, r in zip(("untuned", "tuned", "timed"), results, strict=False)
            if isinstance(r, JobError)
        ]
        self.error = "; ".join(failed)

    def programs(self) -> Programs:
        reference, tuned, *timed = self.artifacts
        return Programs(
            reference,
            tuned,
            timed[0] if timed else tuned,
            arguments_of(self.case.reference, without_rewrite=False),
            arguments_of(self.timed, without_rewrite=True),
        )


def _rewrites_layout(mod: IRModule) -> bool:
    without: Any = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    return not tvm_ffi.structural_equal(mod, without)


def _as_comparison(result: Comparison | JobError) -> Comparison:
    return Comparison(False, error=result.message) if isinstance(result, JobError) else result
