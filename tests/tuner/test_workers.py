from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import psutil
import pytest
import tvm
from filelock import FileLock
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.builder import BuilderInput
from tvm.s_tir.meta_schedule.runner import RunnerInput

from bcd_registry.errors import ConfigError, MeasureError
from bcd_tuner import worker_jobs
from bcd_tuner.checking import arguments_of
from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.targets import resolve_target, target_json
from bcd_tuner.worker_process import JobError, WorkerProcess, WorkerSpec, WorkerStartError
from bcd_tuner.workers import BuildJob, RunJob, WarmBuilder, WarmPool, WarmRunner
from tests.tuner import worker_programs as programs

TARGET = resolve_target("native", cores=2)
LIMIT_BYTES = 1 << 30


@pytest.fixture(scope="module")
def lock_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lock") / "measuring.lock"


@pytest.fixture(scope="module")
def pool(lock_path: Path) -> Iterator[WarmPool]:
    with WarmPool(TARGET, build_timeout_s=30, run_timeout_s=3, memory_limit_bytes=LIMIT_BYTES, lock_path=lock_path) as pool:
        yield pool


def measure(pool: WarmPool, *mods: Any) -> list[Any]:
    built = pool.build([BuildJob(mod) for mod in mods])
    jobs = [RunJob(str(a), arguments_of(m, without_rewrite=True)) for a, m in zip(built, mods, strict=True)]
    return pool.run(jobs)


def assert_times(times: Any) -> None:
    assert isinstance(times, tuple), times
    assert len(times) == 3
    assert all(0 < t < 1 for t in times)


def test_programs_are_built_and_timed(pool: WarmPool) -> None:
    for times in measure(pool, programs.scale, programs.matmul, programs.gather):
        assert_times(times)


@pytest.mark.parametrize(
    ("mod", "said"),
    [
        (programs.abort, "SIGABRT"),
        (programs.wait_for_ever, "timed out"),
        (programs.unknown_symbol, "no_such_function_anywhere"),
    ],
)
def test_a_candidate_that_misbehaves_costs_itself_only(pool: WarmPool, mod: Any, said: str) -> None:
    before, bad, after = measure(pool, programs.scale, mod, programs.matmul)
    assert_times(before)
    assert isinstance(bad, JobError)
    assert said in bad.message
    assert_times(after)


def test_a_candidate_that_eats_memory_costs_itself_only(pool: WarmPool) -> None:
    first, second = pool.build([BuildJob(programs.scale), BuildJob(programs.scale)])
    jobs = [
        RunJob(str(first), (("float32", (1 << 34,)), ("float32", (64, 64)))),
        RunJob(str(second), arguments_of(programs.scale, without_rewrite=True)),
    ]
    bad, good = pool.run(jobs)
    assert isinstance(bad, JobError)
    assert "Memory" in bad.message
    assert_times(good)


@pytest.mark.parametrize("death", [os.abort, os._exit])
def test_a_build_worker_that_dies_is_replaced(pool: WarmPool, death: Any) -> None:
    with pytest.raises(JobError, match=r"SIGABRT|exit code 7"):
        pool.call_builder(death, (7,) if death is os._exit else (), 5)
    assert pool.call_builder(os.getppid, (), 5) == os.getpid()


def test_a_build_that_hangs_is_cut(pool: WarmPool) -> None:
    with pytest.raises(JobError, match="timed out"):
        pool.call_builder(time.sleep, (60,), 0.2)


def test_a_candidate_that_builds_far_longer_than_others_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bcd_tuner.workers._LEAST_PATIENCE_S", 0.5)
    monkeypatch.setattr(worker_jobs, "build", time.sleep)
    monkeypatch.setattr(WarmPool, "_build_arguments", lambda self, job: (job,))
    with WarmPool(TARGET, build_timeout_s=30, lock_path=tmp_path / "lock") as pool:
        jobs: Any = [0.01] * 20
        assert pool.build(jobs, patient=False) == [None] * 20
        slow: Any = [0.01, 1.0]
        _, given_up = pool.build(slow, patient=False)
        assert isinstance(given_up, JobError)
        assert pool.build(slow) == [None, None]


def test_a_worker_that_dies_idle_costs_nothing(pool: WarmPool) -> None:
    pool.build([])
    for pid in pool.pids:
        psutil.Process(pid).kill()
        psutil.Process(pid).wait(5) if psutil.pid_exists(pid) else None
    assert pool.call_builder(abs, (-1,), 5) == 1
    assert pool.call_runner([(abs, (-2,))], 5) == [2]


def test_the_runner_uses_the_targets_cores_and_a_builder_one(pool: WarmPool) -> None:
    assert pool.call_runner([(os.getenv, ("TVM_NUM_THREADS",))], 5) == ["2"]
    assert pool.call_builder(os.getenv, ("TVM_NUM_THREADS",), 5) == "1"


def test_a_slow_program_is_given_up_after_the_cutoff(pool: WarmPool) -> None:
    built = pool.build([BuildJob(programs.matmul)])
    [times] = pool.run([RunJob(str(built[0]), arguments_of(programs.matmul, without_rewrite=True))], cutoff_s=1e-9)
    assert isinstance(times, tuple)
    assert len(times) == 1


@pytest.mark.parametrize(("best_s", "n_samples"), [(None, 3), (1e-9, 1), (1.0, 6)])
def test_what_is_far_from_the_best_is_sampled_once_and_what_beats_it_twice_as_often(
    pool: WarmPool, best_s: float | None, n_samples: int
) -> None:
    built = pool.build([BuildJob(programs.matmul)])
    [times] = pool.run([RunJob(str(built[0]), arguments_of(programs.matmul, without_rewrite=True))], best_s=best_s)
    assert isinstance(times, tuple)
    assert len(times) == n_samples


def test_artifacts_do_not_pile_up(pool: WarmPool) -> None:
    built = pool.build([BuildJob(programs.scale)])
    artifact = Path(str(built[0]))
    assert artifact.exists()
    pool.run([RunJob(str(artifact), arguments_of(programs.scale, without_rewrite=True))])
    assert list(artifact.parent.iterdir()) == []


def test_nothing_is_measured_while_another_process_measures(pool: WarmPool, lock_path: Path) -> None:
    waited = pool.counters.lock_wait_s
    with ThreadPoolExecutor(1) as thread:
        with FileLock(lock_path):
            call = thread.submit(pool.call_runner, [(abs, (-1,))], 5)
            with pytest.raises(FutureTimeout):
                call.result(timeout=0.3)
        assert call.result(timeout=10) == [1]
    assert pool.counters.lock_wait_s > waited


def test_counters_tell_where_time_went(pool: WarmPool) -> None:
    before = (pool.counters.n_builds, pool.counters.n_runs, pool.counters.build_s, pool.counters.run_s)
    measure(pool, programs.scale)
    after = (pool.counters.n_builds, pool.counters.n_runs, pool.counters.build_s, pool.counters.run_s)
    assert [b - a for a, b in zip(before[:2], after[:2], strict=True)] == [1, 1]
    assert all(b > a for a, b in zip(before, after, strict=True))


def test_without_a_linker_the_runner_compiles_just_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_jobs, "_linker", lambda: None)
    module = tvm.ir.save_json(programs.matmul)
    artifact = worker_jobs.build(module, target_json(TARGET), True, str(tmp_path))
    assert artifact.endswith(".ll")
    arguments = arguments_of(programs.matmul, without_rewrite=True)
    assert len(worker_jobs.run(artifact, arguments, worker_jobs.Evaluation(1, 1.0))) == 1


def test_thirty_two_builds_take_seconds(pool: WarmPool) -> None:
    began = time.monotonic()
    built = pool.build([BuildJob(programs.matmul) for _ in range(32)])
    assert all(isinstance(path, str) for path in built)
    assert len(set(built)) == 32
    assert time.monotonic() - began < 30


def test_metaschedule_builds_and_runs_with_it(pool: WarmPool, tmp_path: Path) -> None:
    import_intrinsics("llvm")
    # a TuneContext of an earlier test gave TVM's logger a handler without a name, which TVM's own tuner cannot take
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    logger.handlers = [handler for handler in logger.handlers if handler.get_name()]
    database = ms.tune_tir(
        programs.matmul,
        TARGET,
        str(tmp_path),
        max_trials_global=4,
        num_trials_per_iter=2,
        builder=WarmBuilder(pool),
        runner=WarmRunner(pool),
        strategy="replay-trace",
        cost_model="random",
        database="memory",
        num_tuning_cores=2,
    )
    assert len(database.get_all_tuning_records()) == 4


def test_builder_and_runner_report_failures_as_metaschedule_wants_them(pool: WarmPool) -> None:
    broken = programs.unknown_symbol
    [built] = WarmBuilder(pool).build([BuilderInput(broken, TARGET)])
    runner = WarmRunner(pool)
    runner.cutoff_s = 1.0
    [future] = runner.run([RunnerInput(built.artifact_path, "cpu", ArgInfo.from_entry_func(broken))])
    assert future.done()
    assert future.result().run_secs is None
    assert "no_such_function_anywhere" in str(future.result().error_msg)


def test_a_worker_is_replaced_after_so_many_calls_and_when_it_grows(tmp_path: Path) -> None:
    for recycle_after, recycle_bytes in ((2, 1 << 40), (1000, 1)):
        spec = WorkerSpec("", 1, 0, recycle_after, recycle_bytes, tmp_path / "log")
        worker = WorkerProcess(spec)
        pids = [worker.call(os.getpid, (), 10) for _ in range(3)]
        worker.close()
        assert len(set(pids)) == 2 if recycle_after == 2 else 3


def test_a_worker_that_cannot_start_is_no_candidates_fault(tmp_path: Path) -> None:
    worker = WorkerProcess(WorkerSpec("", 1, 0, 10, 1 << 40, tmp_path / "log", {"PYTHONHOME": "/nowhere"}))
    with pytest.raises(WorkerStartError, match="cannot start"):
        worker.call(abs, (-1,), 10)
    worker.close()


def test_a_closed_pool_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pool = WarmPool(TARGET, n_workers=1, lock_path=tmp_path / "lock")
    assert pool.call_builder(abs, (-1,), 5) == 1
    pids = pool.pids
    pool.close()
    pool.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not list(tmp_path.glob("bcd-registry-*"))
    with pytest.raises(MeasureError, match="closed"):
        pool.build([])


def test_closing_does_not_wait_for_what_runs(tmp_path: Path) -> None:
    pool = WarmPool(TARGET, n_workers=1, lock_path=tmp_path / "lock")
    pool.call_builder(abs, (-1,), 5)
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(pool.call_runner, [(os.mkfifo, (str(begun),)), (time.sleep, (300,))], 300)
        while not begun.exists():
            time.sleep(0.01)
        pool.close()
        assert [str(error) for error in call.result(timeout=10)[1:]] == ["the pool was closed"]


def test_only_cpus_are_measured() -> None:
    with pytest.raises(ConfigError, match="cuda"):
        WarmPool(resolve_target('{"kind": "cuda", "arch": "sm_80"}'))
