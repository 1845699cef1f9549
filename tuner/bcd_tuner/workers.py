"""Warm build and run workers, and the MetaSchedule builder and runner that use them.

TVM's own builder starts its processes anew for every batch, and each imports for half a minute. These start once.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import statistics
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerFuture, RunnerInput, RunnerResult
from tvm.target import Target

from bcd_registry.errors import ConfigError, MeasureError
from bcd_registry.model import Json
from bcd_tuner import worker_jobs
from bcd_tuner.scratch import Scratch, measuring_lock
from bcd_tuner.targets import target_json, usable_cores
from bcd_tuner.worker_jobs import ArgInfo, Evaluation
from bcd_tuner.worker_process import JobError, WorkerProcess, WorkerSpec

T = TypeVar("T")

_GIB = 1 << 30
_LONGEST_WAIT_S = 1.0

REPEAT = 3
"""Timed samples for each measurement, by default."""

MIN_REPEAT_MS = 15.0
"""Length of a sample, by default."""

_LEAST_PATIENCE_S = 2.0
_PATIENCE = 12.0
_REMEMBERED_BUILDS = 64
_LEAST_BUILDS = 16


@dataclass(frozen=True, slots=True)
class BuildJob:
    """One module to compile.

    Attributes:
        strip_layout_rewrite: Drop the blocks that lay weights out anew, as measuring does.
    """

    module: Any
    target: Target | None = None
    strip_layout_rewrite: bool = True


@dataclass(frozen=True, slots=True)
class RunJob:
    """One artifact to time on made-up arguments."""

    artifact: str
    args_info: tuple[ArgInfo, ...]


@dataclass(slots=True)
class Counters:
    """What a pool has spent so far.

    Attributes:
        build_s: Wall seconds inside build calls, the wait for workers to start included.
        run_s: The same of run calls; neither includes the wait for the host's lock.
        lock_wait_s: Wall seconds of waiting until no other process built or measured.
    """

    build_s: float = 0.0
    run_s: float = 0.0
    lock_wait_s: float = 0.0
    n_builds: int = 0
    n_runs: int = 0


class WarmPool:
    """Build workers and one run worker, started in the background when the pool is made.

    Builds and measurements never overlap, in this process or with another process of the host. A crash, a hang or a
    candidate that eats memory costs that candidate. Use it as a context manager; its methods may be called from any
    thread.

    Args:
        target: What modules are built for, unless a build says otherwise.
        n_workers: Build workers.
        memory_limit_bytes: What one build or run may allocate; by default a quarter of the memory.
        recycle_after: Calls after which a worker is replaced, since compiling leaks memory.
        repeat: Timed samples for each measurement.
        min_repeat_ms: Length of a sample.
        lock_path: The lock that is held while measuring; by default the host's.
    """

    def __init__(
        self,
        target: Target,
        n_workers: int = 2,
        build_timeout_s: float = 15.0,
        run_timeout_s: float = 10.0,
        memory_limit_bytes: int | None = None,
        recycle_after: int = 500,
        repeat: int = REPEAT,
        min_repeat_ms: float = MIN_REPEAT_MS,
        lock_path: Path | None = None,
    ) -> None:
        if target.kind.name != "llvm":
            raise ConfigError(f"target `{target.kind.name}` cannot be measured: only CPU targets of kind `llvm` can")
        self.target = target
        self.counters = Counters()
        self.build_timeout_s, self.run_timeout_s = build_timeout_s, run_timeout_s
        self.evaluation = Evaluation(repeat, min_repeat_ms)
        self._cores = int(target.attrs.get("num-cores", usable_cores()))
        self._scratch = Scratch()
        self._host_lock = measuring_lock(lock_path)
        self._exclusive = threading.RLock()
        self._numbers = itertools.count()
        self._build_s: deque[float] = deque(maxlen=_REMEMBERED_BUILDS)
        limit = psutil.virtual_memory().total // 4 if memory_limit_bytes is None else memory_limit_bytes
        spec = WorkerSpec(
            preload=target.kind.name,
            threads=1,
            memory_limit_bytes=limit,
            recycle_after=recycle_after,
            recycle_bytes=min(2 * _GIB, max(limit // 2, _GIB // 2)),
            log=self._scratch.path / "worker.log",
        )
        self._builders = [_Lane(replace(spec, log=self._scratch.path / f"build-{i}.log")) for i in range(n_workers)]
        self._runner = _Lane(replace(spec, threads=self._cores, log=self._scratch.path / "run.log"))
        self._finalizer = weakref.finalize(self, _close, [*self._builders, self._runner], self._scratch)

    def __enter__(self) -> WarmPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers, whatever they are doing, and removes the temporary files."""
        self._finalizer()

    @staticmethod
    def default_measurement() -> dict[str, Json]:
        """`measurement` of a pool made with the default arguments."""
        return _measurement(Evaluation(REPEAT, MIN_REPEAT_MS))

    @property
    def measurement(self) -> dict[str, Json]:
        """How this pool measures, for the environment of what it measured."""
        return _measurement(self.evaluation)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that run now, the run worker last."""
        return tuple(lane.worker.pid for lane in [*self._builders, self._runner] if lane.worker.pid is not None)

    def build(self, jobs: Sequence[BuildJob], *, patient: bool = True) -> list[str | JobError]:
        """Compiles modules on all build workers; for each the artifact's path, or why there is none.

        Args:
            patient: False gives up what takes many times as long as others did lately: one candidate of many.
        """
        with self._used(), self._building(len(jobs)):
            calls = [(worker_jobs.build, self._build_arguments(job)) for job in jobs]
            return self._spread(calls, self.build_timeout_s if patient else self._patience_s)

    @property
    def _patience_s(self) -> float:
        """Seconds that one candidate's build may take."""
        if len(self._build_s) < _LEAST_BUILDS:
            return self.build_timeout_s
        return min(self.build_timeout_s, max(_LEAST_PATIENCE_S, _PATIENCE * statistics.median(self._build_s)))

    def run(
        self, jobs: Sequence[RunJob], cutoff_s: float | None = None, best_s: float | None = None
    ) -> list[tuple[float, ...] | JobError]:
        """Times artifacts one after the other; for each the seconds of one run, a figure a sample.

        The artifacts' files are removed.

        Args:
            cutoff_s: A program whose first run takes longer is given up, with that one time as its result.
            best_s: The time to beat: what is far slower is sampled once, what beats it twice as often.
        """
        evaluation = replace(self.evaluation, cutoff_s=cutoff_s, best_s=best_s)
        calls = [(worker_jobs.run, (job.artifact, job.args_info, evaluation)) for job in jobs]
        results: list[tuple[float, ...] | JobError] = self.call_runner(calls, self.run_timeout_s)
        for job in jobs:
            remove_files(job.artifact)
        return results

    def call_runner(self, calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], timeout_s: float) -> list[Any]:
        """Runs functions in the run worker, one at a time, nothing else being built or measured; values or JobErrors."""
        with self._used(), self._measuring(len(calls)):
            return [_value_or_error(self._runner.submit(function, args, timeout_s)) for function, args in calls]

    def call_builder(self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
        """Runs one function in a build worker.

        Raises:
            JobError: It failed.
        """
        with self._used():
            return _wait(self._builders[0].submit(function, args, timeout_s))

    def _build_arguments(self, job: BuildJob) -> tuple[Any, ...]:
        folder = self._scratch.path / f"{next(self._numbers):06d}"
        return tvm.ir.save_json(job.module), target_json(job.target or self.target), job.strip_layout_rewrite, str(folder)

    def _spread(self, calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], timeout_s: float) -> list[Any]:
        """Gives every worker the next call as soon as it is free; values or JobErrors in the order of the calls."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in range(len(calls)):
            waiting.put(i)
        results: list[Any] = [None] * len(calls)
        drains = [lane.drain(waiting, calls, results, timeout_s, self._build_s.append) for lane in self._builders]
        try:
            for drain in drains:
                _wait(drain)
        except BaseException:
            _empty(waiting)
            raise
        return results

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """One call at a time, so that builds and measurements never overlap."""
        with self._exclusive:
            if not self._finalizer.alive:
                raise MeasureError("the worker pool is closed")
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the host's lock: no other process of the host builds or measures meanwhile. Threads take turns."""
        with self._used(), self._host_locked():
            yield

    @contextlib.contextmanager
    def _building(self, n_builds: int) -> Iterator[None]:
        """Holds the host's lock, since a build takes cores from whoever measures; not before a worker can build."""
        began, waited_s = time.monotonic(), self.counters.lock_wait_s
        try:
            starting = [lane.ready() for lane in self._builders]
            while not wait(starting, timeout=_LONGEST_WAIT_S, return_when=FIRST_COMPLETED).done:
                continue
            with self._host_locked():
                yield
        finally:
            self.counters.build_s += time.monotonic() - began - (self.counters.lock_wait_s - waited_s)
            self.counters.n_builds += n_builds

    @contextlib.contextmanager
    def _measuring(self, n_runs: int) -> Iterator[None]:
        """Holds the host's lock, with no worker of this pool starting meanwhile."""
        began, waited_s = time.monotonic(), self.counters.lock_wait_s
        try:
            for lane in [*self._builders, self._runner]:
                lane.wait_ready()
            with self._host_locked():
                yield
        finally:
            self.counters.run_s += time.monotonic() - began - (self.counters.lock_wait_s - waited_s)
            self.counters.n_runs += n_runs

    @contextlib.contextmanager
    def _host_locked(self) -> Iterator[None]:
        began = time.monotonic()
        with self._host_lock:
            self.counters.lock_wait_s += time.monotonic() - began
            yield


def _measurement(evaluation: Evaluation) -> dict[str, Json]:
    return {"repeat": evaluation.repeat, "min_repeat_ms": evaluation.min_repeat_ms, "cache": "warm"}


class _Lane:
    """A worker process and the one thread that owns it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.worker = WorkerProcess(spec)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"worker-{spec.log.stem}")
        self._thread.submit(self.worker.start)

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Future[Any]:
        return self._thread.submit(self.worker.call, function, args, timeout_s)

    def wait_ready(self) -> None:
        _wait(self.ready())

    def ready(self) -> Future[None]:
        """Done when the worker is started; it may have failed."""
        return self._thread.submit(self.worker.wait_ready)

    def drain(
        self,
        waiting: queue.SimpleQueue[int],
        calls: Sequence[Any],
        results: list[Any],
        timeout_s: float,
        took: Callable[[float], None],
    ) -> Future[None]:
        return self._thread.submit(self._drain, waiting, calls, results, timeout_s, took)

    def _drain(
        self,
        waiting: queue.SimpleQueue[int],
        calls: Sequence[Any],
        results: list[Any],
        timeout_s: float,
        took: Callable[[float], None],
    ) -> None:
        while True:
            self.worker.wait_ready()  # before a call is taken: another worker may be free for it
            try:
                i = waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            try:
                function, args = calls[i]
                results[i] = self.worker.call(function, args, timeout_s)
            except JobError as error:
                results[i] = error
            took(time.monotonic() - began)

    def close(self) -> None:
        self.worker.kill()
        self._thread.shutdown(wait=True)
        self.worker.close()


def _close(lanes: Sequence[_Lane], scratch: Scratch) -> None:
    for lane in lanes:
        lane.worker.kill()
    for lane in lanes:
        lane.close()
    scratch.close()


def _empty(waiting: queue.SimpleQueue[int]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _wait(future: Future[T]) -> T:
    """Its result. A signal that comes just before a wait begins does not end that wait, so none is long."""
    while True:
        done, _ = wait([future], timeout=_LONGEST_WAIT_S)
        if done:
            return future.result()


def _value_or_error(future: Future[Any]) -> Any:
    try:
        return _wait(future)
    except JobError as error:
        return error


def remove_files(artifact: str) -> None:
    """Removes an artifact's files; its folder stays, since TVM's own callback removes that and fails without it."""
    for file in Path(artifact).parent.glob("*"):
        file.unlink(missing_ok=True)


@derived_object
class WarmBuilder(PyBuilder):  # type: ignore[misc]
    """MetaSchedule's builder on a warm pool."""

    def __init__(self, pool: WarmPool) -> None:
        super().__init__()
        self.pool = pool

    def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
        """Compiles the inputs; a failed one carries its error."""
        results = self.pool.build([BuildJob(item.mod, item.target) for item in build_inputs], patient=False)
        return [BuilderResult(None, r.message) if isinstance(r, JobError) else BuilderResult(r, None) for r in results]


@derived_object
class WarmRunner(PyRunner):  # type: ignore[misc]
    """MetaSchedule's runner on a warm pool.

    Attributes:
        cutoff_s: Candidates of the next batches whose first run takes longer are given up after it.
    """

    def __init__(self, pool: WarmPool, cutoff_s: float | None = None) -> None:
        super().__init__()
        self.pool = pool
        self.cutoff_s = cutoff_s

    def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
        """Measures the inputs one after the other; the futures are done when it returns."""
        jobs = [RunJob(str(item.artifact_path), args_of(item.args_info)) for item in runner_inputs]
        results = self.pool.run(jobs, self.cutoff_s)
        return [_Measured(RunnerResult(None, r.message) if isinstance(r, JobError) else RunnerResult(r, None)) for r in results]


@derived_object
class _Measured(PyRunnerFuture):  # type: ignore[misc]
    def __init__(self, measured: RunnerResult) -> None:
        super().__init__()
        self.measured = measured

    def done(self) -> bool:
        return True

    def result(self) -> RunnerResult:
        return self.measured


def args_of(args_info: Sequence[Any]) -> tuple[ArgInfo, ...]:
    """Plain dtypes and shapes of MetaSchedule's argument descriptions."""
    return tuple((str(info.dtype), tuple(int(d) for d in info.shape)) for info in args_info)
