"""TVM's own `JSONDatabase` folders: read line by line without trusting any, and written for stock TVM."""

from __future__ import annotations

import bisect
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase
from tvm.s_tir.meta_schedule.database import TuningRecord as TvmRecord
from tvm.target import Target

from bcd_registry.errors import ConfigError, CorruptBlob, MeasureError
from bcd_registry.model import Decision, Json, Workload

from .scratch import Scratch
from .strange_programs import Loaded, Replayed, load_workload, replay_on_line
from .worker_process import JobError, WorkerProcess, WorkerSpec

WORKLOADS_FILE = "database_workload.json"
RECORDS_FILE = "database_tuning_record.json"

MAX_LINE_BYTES = 16 << 20
"""Longest line with a program: a fused convolution has some 100 KB."""

MAX_RECORD_BYTES = 2 << 20
"""Longest line with a record, whose trace may take half of it."""

MAX_WORKLOADS_BYTES = 256 << 20
"""Largest file of programs: they are held while the records are read."""

KEPT_A_WORKLOAD = 8
"""Schedules that are taken of a workload: its fastest."""

LINE_TIMEOUT_S = 20.0
"""What one line may take to load or replay."""

MOST_LOST = 20
"""Lines that may end the process that reads them, before the folder is given up."""

_FAILED_S = 1e9
"""TVM writes 1e10 s for a candidate that failed."""

_NEVER_S = 1e12

_MOST_TIMES = 1000
_MEMORY_BYTES = 4 << 30
_RECYCLE_BYTES = 1 << 30
_RECYCLE_AFTER = 10_000
_LOST = ("timed out", "the worker died")
_NOT_A_FOLDER = "TVM's JSONDatabase writes both files into one folder"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be used.

    Attributes:
        file: The file; of a bundle the record.
        number: Beginning with 1; 0 where there are no lines.
    """

    file: str
    number: int
    reason: str

    def describe(self) -> str:
        """One line, as compilers say where something is."""
        return f"{self.file}:{self.number}: {self.reason}" if self.number else f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FoundSchedule:
    """A schedule that replays on the canonical program, with the times that the file says it took."""

    replayed: Replayed
    run_times_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median of the times, seconds."""
        return statistics.median(self.run_times_s)

    @property
    def key(self) -> tuple[str, tuple[Decision, ...]]:
        """What makes two schedules one."""
        return self.replayed.sketch, self.replayed.decisions


@dataclass(slots=True)
class FoundWorkload:
    """A program of the folder, and the fastest of its schedules.

    Attributes:
        n_trials: Records of it, failures included.
        schedules: The fastest first, at most `KEPT_A_WORKLOAD`.
    """

    loaded: Loaded
    n_trials: int = 0
    schedules: list[FoundSchedule] = field(default_factory=list)

    @property
    def workload(self) -> Workload:
        """Its keys, made here."""
        return self.loaded.workload

    def take(self, found: FoundSchedule) -> None:
        """Keep it if it is among the fastest; of one schedule the faster times stay."""
        same = next((schedule for schedule in self.schedules if schedule.key == found.key), None)
        if same is not None and same.median_s <= found.median_s:
            return
        others = [schedule for schedule in self.schedules if schedule is not same]
        bisect.insort(others, found, key=lambda schedule: schedule.median_s)
        self.schedules = others[:KEPT_A_WORKLOAD]


@dataclass(slots=True)
class FoundDatabase:
    """What a folder holds.

    Attributes:
        n_records: Lines with a record.
        n_failed: Those of candidates that failed when they were measured.
        n_replayed: Those whose trace replays.
    """

    workloads: list[FoundWorkload] = field(default_factory=list)
    n_records: int = 0
    n_failed: int = 0
    n_replayed: int = 0
    bad: list[BadLine] = field(default_factory=list)


class Reader:
    """A child process that reads what strangers wrote. A crash or a hang costs one line. Used by one thread."""

    def __init__(self, worker: WorkerProcess) -> None:
        """Work with the process, which its owner closes."""
        self._worker = worker
        self._n_lost = 0

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns there.

        Raises:
            CorruptBlob: It raised, crashed or hung.
            MeasureError: Too many did the latter two, or no process can be started.
        """
        try:
            return self._worker.call(function, arguments, LINE_TIMEOUT_S)
        except JobError as error:
            self._n_lost += error.message.startswith(_LOST)
            if self._n_lost > MOST_LOST:
                raise MeasureError(
                    f"{self._n_lost} lines ended the process that reads them",
                    hint="nothing was imported: the folder was not made by this TVM, or is damaged",
                ) from error
            raise CorruptBlob(error.message.removeprefix("CorruptBlob: ")) from error


@contextlib.contextmanager
def open_reader(target: Target) -> Iterator[Reader]:
    """A reader whose process ends with the block."""
    scratch = Scratch()
    spec = WorkerSpec(
        preload=target.kind.name,
        threads=1,
        memory_limit_bytes=_MEMORY_BYTES,
        recycle_after=_RECYCLE_AFTER,
        recycle_bytes=_RECYCLE_BYTES,
        log=scratch.path / "reader.log",
    )
    worker = WorkerProcess(spec)
    try:
        worker.start()
        yield Reader(worker)
    finally:
        worker.close()
        scratch.close()


def read_database(folder: Path, reader: Reader, step: Callable[[], None]) -> FoundDatabase:
    """Read both files. A line that cannot be used is noted, and the others go on.

    Args:
        step: Called after each line.

    Raises:
        ConfigError: The folder does not hold both files, or they cannot be read.
        MeasureError: Too many lines end the reading process.
    """
    workloads_path, records_path = folder / WORKLOADS_FILE, folder / RECORDS_FILE
    database = FoundDatabase()
    try:
        for path in (workloads_path, records_path):
            if not path.is_file():
                raise ConfigError(f"{folder} is no JSONDatabase: there is no file {path.name} in it", hint=_NOT_A_FOLDER)
        if workloads_path.stat().st_size > MAX_WORKLOADS_BYTES:
            raise ConfigError(f"{workloads_path} has more than {MAX_WORKLOADS_BYTES >> 20} MiB", hint="split the database")
        lines = _read_workloads(workloads_path, reader, database, step)
        _read_records(records_path, lines, reader, database, step)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or error}") from error
    return database


def write_database(folder: Path, target: Target, schedules: Sequence[tuple[IRModule, Schedule, Sequence[float]]]) -> None:
    """Write a folder that stock TVM reads: programs, their schedules and the seconds of their runs.

    Raises:
        ConfigError: The folder holds such a file already, or cannot be written.
    """
    require_free(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as temporary:
            database = JSONDatabase(work_dir=temporary)
            for mod, schedule, run_times_s in schedules:
                workload = database.commit_workload(mod)
                arguments = ArgInfo.from_entry_func(mod, remove_preproc=True)
                database.commit_tuning_record(TvmRecord(schedule.trace, workload, list(run_times_s), target, arguments))
            for name in (WORKLOADS_FILE, RECORDS_FILE):
                (Path(temporary) / name).replace(folder / name)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}", hint="give a folder of your own") from error


def require_free(folder: Path) -> None:
    """Do nothing when a database can be written into the folder.

    Raises:
        ConfigError: It holds one already, or is a file.
    """
    for path in (folder / WORKLOADS_FILE, folder / RECORDS_FILE):
        if path.exists():
            raise ConfigError(f"{path} is there already", hint="give a new folder")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", hint="give a new folder")


_Line = tuple[bytes, FoundWorkload] | None
"""The bytes of a program's line, and what it holds; None for a bad one."""


def _read_workloads(path: Path, reader: Reader, database: FoundDatabase, step: Callable[[], None]) -> list[_Line]:
    lines: list[_Line] = []
    by_key: dict[str, FoundWorkload] = {}
    for number, line in _iter_lines(path, MAX_LINE_BYTES):
        try:
            loaded = reader.call(load_workload, _whole(line, MAX_LINE_BYTES))
            lines.append((line or b"", by_key.setdefault(loaded.workload.key, FoundWorkload(loaded))))
        except CorruptBlob as error:
            lines.append(None)
            database.bad.append(BadLine(path.name, number, error.message))
        step()
    database.workloads = list(by_key.values())
    return lines


def _read_records(
    path: Path, lines: Sequence[_Line], reader: Reader, database: FoundDatabase, step: Callable[[], None]
) -> None:
    for number, line in _iter_lines(path, MAX_RECORD_BYTES):
        database.n_records += 1
        try:
            _take_record(_whole(line, MAX_RECORD_BYTES), lines, reader, database)
        except CorruptBlob as error:
            database.bad.append(BadLine(path.name, number, error.message))
        step()


def _take_record(line: bytes, lines: Sequence[_Line], reader: Reader, database: FoundDatabase) -> None:
    index, trace, run_times_s = _parse_record(line)
    if not 0 <= index < len(lines):
        raise CorruptBlob(f"it is of workload {index + 1}, and there are {len(lines)}")
    source = lines[index]
    if source is None:
        raise CorruptBlob(f"its workload, line {index + 1} of {WORKLOADS_FILE}, cannot be used")
    program, found = source
    found.n_trials += 1
    if not run_times_s or not 0 < statistics.median(run_times_s) < _FAILED_S:
        database.n_failed += 1
        return
    found.take(FoundSchedule(reader.call(replay_on_line, program, trace), run_times_s))
    database.n_replayed += 1


def _iter_lines(path: Path, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Number and bytes of each line; None for one that is too long. Only so much is held at a time."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            whole = len(line) <= limit or line.endswith(b"\n")
            while not line.endswith(b"\n") and (line_goes_on := file.readline(limit)):
                whole, line = False, line_goes_on
            yield number, line.strip() if whole else None


def _whole(line: bytes | None, limit: int) -> bytes:
    if line is None:
        raise CorruptBlob(f"it has more than {limit >> 20} MiB")
    return line


def _parse_record(line: bytes) -> tuple[int, Json, tuple[float, ...]]:
    """The workload's number, the trace, and the seconds of the runs; none for a candidate that failed."""
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptBlob(f"it is not JSON: {error}") from error
    if not (isinstance(value, list) and len(value) == 2 and type(value[0]) is int):
        raise CorruptBlob("it is not a workload's number and a record")
    index, record = value
    if not (isinstance(record, list) and len(record) == 4):
        raise CorruptBlob("its record is not a trace, times, a target and arguments")
    trace, times, target, _ = record
    _require_cpu(target)
    return index, trace, _times(times)


def _times(times: Json) -> tuple[float, ...]:
    if times is None:
        return ()
    valid = isinstance(times, list) and len(times) <= _MOST_TIMES
    if not valid or not all(type(t) in (int, float) and 0 < t <= _NEVER_S for t in times):
        raise CorruptBlob("its times are not positive numbers of seconds")
    return tuple(map(float, times))


def _require_cpu(target: Json) -> None:
    """A schedule of another kind of target is of no use here; one that names none may be."""
    kind = target.get("kind") if isinstance(target, dict) else target
    if kind is not None and kind != "llvm":
        raise CorruptBlob(f"it was made for the target {kind!r:.40}, not for a CPU")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
