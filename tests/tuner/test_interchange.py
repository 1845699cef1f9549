"""TVM's own database folders: in without trust, and out for stock TVM."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te, tirx, topi
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase
from tvm.s_tir.meta_schedule.database import TuningRecord as TvmRecord

from bcd_registry import exchange
from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.bundle import Bundle, pack_bundle, read_bundle
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import ConfigError, CorruptBlob, MeasureError, NotFound
from bcd_registry.model import Grade, NetworkSpec, NetworkVersion, RecordState, TuningRecord
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key
from bcd_tuner import imports, interchange, remeasuring
from bcd_tuner.environment import current_environment
from bcd_tuner.exports import export_database
from bcd_tuner.imports import ImportReport, import_bundle, import_database
from bcd_tuner.interchange import RECORDS_FILE, WORKLOADS_FILE, BadLine, FoundDatabase, Reader, open_reader, read_database
from bcd_tuner.networks import import_network
from bcd_tuner.plan import UNTUNED_SKETCH
from bcd_tuner.replay import trace_as_json
from bcd_tuner.space import apply_decisions, read_decisions, read_space
from bcd_tuner.subgraph import workload_of
from bcd_tuner.targets import resolve_target
from bcd_tuner.tasks import LoweredNetwork, canonicalise, lower
from bcd_tuner.worker_checks import Comparison
from bcd_tuner.workers import WarmPool
from tests.tuner import small_networks
from tests.tuner import tuning_programs as programs

TARGET = programs.TARGET
Line = list[Any]


def product(n: int = 64) -> Any:
    """A matrix product under the names that lowering gave it."""
    a, b = te.placeholder((n, n), "float32", "left"), te.placeholder((n, n), "float32", "right")
    return tvm.IRModule({"main": te.create_prim_func([a, b, topi.matmul(a, b)])})


def scores() -> Any:
    x = te.placeholder((16, 64), "float32", "scores")
    return tvm.IRModule({"main": te.create_prim_func([x, topi.nn.softmax(x)])})


def drawn(mod: Any, n: int) -> list[Any]:
    """Schedules of a module's design spaces, each with drawn decisions."""
    context, spaces = programs.context_of(mod)
    read, postprocs = [read_space(space) for space in spaces], list(context.space_generator.postprocs)
    found: list[Any] = []
    for seed in range(1, 10 * n):
        space = read[seed % len(read)]
        schedule = apply_decisions(mod, space, (None,) * len(space.sites), postprocs, seed)
        if schedule is not None and read_decisions(schedule) not in [read_decisions(other) for other in found]:
            found.append(schedule)
        if len(found) == n:
            break
    return found


def write_stock(folder: Path, tuned: Sequence[tuple[Any, Sequence[Any]]]) -> Path:
    """A folder as TVM itself writes it: the schedules of a module take 1 ms, 2 ms and so on."""
    folder.mkdir(parents=True)
    database = JSONDatabase(work_dir=str(folder))
    for mod, schedules in tuned:
        workload = database.commit_workload(mod)
        arguments = ArgInfo.from_entry_func(mod, remove_preproc=True)
        for i, schedule in enumerate(schedules):
            database.commit_tuning_record(TvmRecord(schedule.trace, workload, [1e-3 * (1 + i)], TARGET, arguments))
    return folder


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two programs: one with three schedules and a failure, one with one schedule."""
    folder = write_stock(
        tmp_path_factory.mktemp("stock") / "logs", [(product(), drawn(product(), 3)), (scores(), drawn(scores(), 1))]
    )
    failed = records_in(folder)[0]
    failed[1][1] = [1e10]
    append(folder / RECORDS_FILE, failed)
    return folder


@pytest.fixture
def folder(stock: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    copy = tmp_path / "logs"
    copy.mkdir()
    for name in (WORKLOADS_FILE, RECORDS_FILE):
        (copy / name).write_bytes((stock / name).read_bytes())
    return copy


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with open_reader(TARGET) as opened:
        yield opened


@pytest.fixture
def registry() -> Iterator[Registry]:
    with SqlCatalog.open_memory() as catalog:
        yield Registry(catalog, MemoryBlobs(), clock=lambda: 5000.0)


def lines_in(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def records_in(folder: Path) -> list[Line]:
    return lines_in(folder / RECORDS_FILE)


def append(path: Path, *lines: Any) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)


def nothing(*_: object) -> None:
    """A progress that nobody sees."""


def read(folder: Path, reader: Reader) -> FoundDatabase:
    return read_database(folder, reader, nothing)


def as_line(mod: Any) -> Line:
    return encoded(tvm.ir.save_json(mod).encode())


def encoded(text: bytes) -> Line:
    """A line as TVM writes it, under a hash that is wrong."""
    return ["0", base64.b64encode(len(text).to_bytes(8, "little") + text).decode()]


def test_a_folder_of_stock_tvm_is_read_under_our_own_keys(stock: Path, reader: Reader) -> None:
    found = read(stock, reader)
    assert found.bad == []
    assert (found.n_records, found.n_replayed, found.n_failed) == (5, 4, 1)
    assert [item.workload.key for item in found.workloads] == [workload_of(canonicalise(m)).key for m in (product(), scores())]
    assert [item.n_trials for item in found.workloads] == [4, 1]
    times = [schedule.run_times_s for schedule in found.workloads[0].schedules]
    assert times == [(1e-3,), (2e-3,), (3e-3,)]
    assert found.workloads[0].workload.op.startswith("T_matmul")


def test_traces_are_carried_to_the_canonical_program(stock: Path, reader: Reader) -> None:
    found = read(stock, reader).workloads[0]
    asked = {a[0] for s in found.schedules for kind, _, a, _ in s.replayed.trace[0] if kind == "GetSBlock"}
    assert asked <= {"block_0", "root"} | {name for name in asked if name.startswith(("block_", "buffer_"))}
    expected = [read_decisions(schedule)[1] for schedule in drawn(product(), 3)]
    assert [schedule.replayed.decisions for schedule in found.schedules] == expected


def test_the_hashes_of_the_file_are_not_looked_at(folder: Path, reader: Reader) -> None:
    lines = lines_in(folder / WORKLOADS_FILE)
    (folder / WORKLOADS_FILE).write_text("".join(f"{json.dumps(['lies', text])}\n" for _, text in lines), encoding="utf-8")
    assert [item.n_trials for item in read(folder, reader).workloads] == [4, 1]


def test_the_same_program_under_other_names_is_one_workload(folder: Path, reader: Reader) -> None:
    append(folder / WORKLOADS_FILE, as_line(canonicalise(product())))
    [schedule] = drawn(canonicalise(product()), 1)
    append(folder / RECORDS_FILE, [2, [trace_as_json(schedule), [5e-4], None, None]])
    found = read(folder, reader)
    assert found.bad == []
    assert [item.n_trials for item in found.workloads] == [5, 1]
    assert found.workloads[0].schedules[0].run_times_s == (5e-4,)


def test_only_the_fastest_are_taken_and_each_once(folder: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interchange, "KEPT_A_WORKLOAD", 2)
    faster = records_in(folder)[2]
    faster[1][1] = [1e-4, 3e-4, 2e-4]
    append(folder / RECORDS_FILE, faster)
    found = read(folder, reader).workloads[0]
    assert [schedule.run_times_s for schedule in found.schedules] == [(1e-4, 3e-4, 2e-4), (1e-3,)]


def changed(change: Callable[[Line], object], at: int = 0) -> Callable[[Path], None]:
    """Damage to one record."""

    def damage(folder: Path) -> None:
        lines = records_in(folder)
        change(lines[at])
        (folder / RECORDS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")

    return damage


def text_of(line: str) -> Callable[[Path], None]:
    """A line in the place of the first record."""

    def damage(folder: Path) -> None:
        lines = (folder / RECORDS_FILE).read_text(encoding="utf-8").splitlines()
        (folder / RECORDS_FILE).write_text("\n".join([line, *lines[1:]]) + "\n", encoding="utf-8")

    return damage


def cut_line(folder: Path) -> None:
    first = (folder / RECORDS_FILE).read_text(encoding="utf-8").splitlines()[0]
    text_of(first[: len(first) // 2])(folder)


def imported_code(line: Line) -> None:
    """The trace also has the program bring code of its own."""
    instructions, _ = line[1][0]
    block = next(outputs[0] for kind, _, _, outputs in instructions if kind == "GetSBlock")
    place = next(i for i, (kind, *_) in enumerate(instructions) if kind == "GetSBlock") + 1
    instructions.insert(place, ["Annotate", [block, '"define i32 @f()"'], ["pragma_import_llvm"], []])
    line[1][0][1] = [[i + (i >= place), decision] for i, decision in line[1][0][1]]


BAD_RECORDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut_line, "not JSON"),
    "blank": (text_of(""), "not JSON"),
    "deep": (text_of("[" * 100_000), "not JSON"),
    "not a number": (text_of("[0, [[[], []], [NaN], null, null]]"), "NaN is not a JSON number"),
    "object": (text_of("{}"), "a workload's number and a record"),
    "number is none": (changed(lambda line: line.__setitem__(0, True)), "a workload's number"),
    "short": (changed(lambda line: line[1].pop()), "a trace, times, a target and arguments"),
    "no such workload": (changed(lambda line: line.__setitem__(0, 2)), "of workload 3, and there are 2"),
    "negative workload": (changed(lambda line: line.__setitem__(0, -1)), "of workload 0"),
    "times": (changed(lambda line: line[1].__setitem__(1, "fast")), "not positive numbers"),
    "no time at all": (changed(lambda line: line[1].__setitem__(1, [0.0])), "not positive numbers"),
    "huge time": (changed(lambda line: line[1].__setitem__(1, [10**400])), "not positive numbers"),
    "other target": (changed(lambda line: line[1].__setitem__(2, {"kind": "cuda"})), "for the target 'cuda'"),
    "no trace": (changed(lambda line: line[1].__setitem__(0, None)), "not a list of instructions"),
    "trace of numbers": (changed(lambda line: line[1].__setitem__(0, [[1], []])), "not a list of instructions"),
    "decision of nothing": (changed(lambda line: line[1][0][1].append([99_999, 1])), "not a list of instructions"),
    "no such instruction": (changed(lambda line: line[1][0][0].insert(0, ["Wish", [], [], []])), "not replay"),
    "no such block": (changed(lambda line: line[1][0][0].insert(0, ["GetSBlock", [], ["nowhere", "main"], ["b9"]])), "nowhere"),
    "trace of another workload": (changed(lambda line: line.__setitem__(0, 1)), "not fit"),
    "code of its own": (changed(imported_code), "could bring code of its own"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_bad_record_costs_its_line(name: str, folder: Path, reader: Reader) -> None:
    damage, message = BAD_RECORDS[name]
    damage(folder)
    found = read(folder, reader)
    [bad] = found.bad
    assert (bad.file, bad.number) == (RECORDS_FILE, 1)
    assert message in bad.reason
    assert "\n" not in bad.describe()
    assert (found.n_records, found.n_replayed) == (5, 3)


def calling_outside() -> Any:
    """A program that would run a function of the C library."""
    return programs_calling("getpid")


def programs_calling(name: str) -> Any:
    from tests.tuner import worker_programs

    return worker_programs.calling(name)


def unwritten() -> Any:
    """A program that writes to a buffer which nobody gives it."""
    function = product()["main"]
    return tvm.IRModule({"main": tirx.PrimFunc(list(function.params)[:2], function.body).with_attr("global_symbol", "main")})


def two_functions() -> Any:
    one = product()["main"]
    return tvm.IRModule({"main": one, "other": one.with_attr("global_symbol", "other")})


BAD_WORKLOADS: dict[str, tuple[Callable[[], Any], str]] = {
    "no JSON": (lambda: "[", "Expecting value"),
    "object": (dict, "a hash and a program"),
    "three parts": (lambda: ["0", "", ""], "a hash and a program"),
    "no base64": (lambda: ["0", "%%"], "base64"),
    "no length": (lambda: ["0", base64.b64encode(b"{}").decode()], "not as long as it says"),
    "empty": (lambda: encoded(b""), "Expecting value"),
    "no program in it": (lambda: encoded(b"{}"), ""),
    "a number": (lambda: as_line(tirx.IntImm("int32", 1)), "not a program of one TIR function"),
    "two functions": (lambda: as_line(two_functions()), "not a program of one TIR function"),
    "not well-formed": (lambda: as_line(unwritten()), "not a well-formed program"),
    "outside function": (lambda: as_line(calling_outside()), "call_extern"),
}


@pytest.mark.parametrize("name", BAD_WORKLOADS)
def test_a_bad_program_costs_its_line_and_its_records(name: str, folder: Path, reader: Reader) -> None:
    make, message = BAD_WORKLOADS[name]
    append(folder / WORKLOADS_FILE, make())
    append(folder / RECORDS_FILE, [2, records_in(folder)[0][1]])
    found = read(folder, reader)
    program, record = found.bad
    assert (program.file, program.number) == (WORKLOADS_FILE, 3)
    assert message in program.reason
    assert record == BadLine(RECORDS_FILE, 6, f"its workload, line 3 of {WORKLOADS_FILE}, cannot be used")
    assert len(found.workloads) == 2


def test_lines_that_are_too_long_are_skipped(folder: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(map(len, (folder / RECORDS_FILE).read_bytes().splitlines()))
    monkeypatch.setattr(interchange, "MAX_RECORD_BYTES", longest)
    lines = (folder / RECORDS_FILE).read_bytes().splitlines()
    (folder / RECORDS_FILE).write_bytes(b"\n".join([b"[" * (5 * longest), *lines, b"[" * (longest + 1)]))
    found = read(folder, reader)
    assert [line.number for line in found.bad] == [1, 7]
    assert "has more than" in found.bad[0].reason
    assert found.n_replayed == 4


def test_a_trace_that_is_too_long(folder: Path, reader: Reader) -> None:
    changed(lambda line: line[1][0][0].append(["Annotate", ["b0", "x" * (1 << 20)], ["y"], []]))(folder)
    [bad] = read(folder, reader).bad
    assert "more than 1 MiB" in bad.reason


def test_a_crash_costs_one_call(reader: Reader) -> None:
    with pytest.raises(CorruptBlob, match="the worker died: SIGABRT"):
        reader.call(os.abort)
    assert reader.call(os.getpid) != os.getpid()


def test_a_hang_costs_one_call(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interchange, "LINE_TIMEOUT_S", 0.2)
    with pytest.raises(CorruptBlob, match="timed out"):
        reader.call(time.sleep, 60)
    monkeypatch.setattr(interchange, "LINE_TIMEOUT_S", 60.0)
    assert reader.call(os.getpid) != os.getpid()


def test_too_many_crashes_end_it(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interchange, "MOST_LOST", reader._n_lost)
    with pytest.raises(MeasureError, match="lines ended the process"):
        reader.call(os.abort)
    monkeypatch.setattr(interchange, "MOST_LOST", 10_000)
    assert reader.call(os.getpid) != os.getpid()


@pytest.mark.parametrize("missing", [WORKLOADS_FILE, RECORDS_FILE])
def test_a_folder_without_one_of_the_files(missing: str, folder: Path, reader: Reader) -> None:
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=f"is no JSONDatabase: there is no file {missing}"):
        read(folder, reader)


def test_a_file_of_programs_that_is_too_large(folder: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interchange, "MAX_WORKLOADS_BYTES", 1)
    with pytest.raises(ConfigError, match="has more than"):
        read(folder, reader)


@pytest.fixture
def one_reader(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports read with the process that is there already."""
    monkeypatch.setattr(imports, "open_reader", lambda target: contextlib.nullcontext(reader))


def imported(folder: Path, registry: Registry, **options: Any) -> ImportReport:
    return import_database(folder, registry, TARGET, nothing, **options)


def test_what_was_imported_is_a_prior_that_never_equals_what_is_measured_here(stock: Path, registry: Registry) -> None:
    report = imported(stock, registry)
    assert (report.taken.n_priors, report.taken.n_published, report.n_workloads) == (4, 0, 2)
    workload = workload_of(canonicalise(product()))
    environment = current_environment(TARGET, WarmPool.default_measurement())
    [match] = registry.lookup([workload], environment, {workload.key: 1})
    assert match.grade is Grade.STALE
    assert len(match.priors) == 3
    assert "measurement.how imported then" in match.reason
    assert {prior.record.state for prior in match.priors} == {RecordState.MEASURED}
    assert {(prior.record.trials, prior.record.depth) for prior in match.priors} == {(0, 0)}


def test_importing_a_folder_again_changes_nothing(stock: Path, registry: Registry, one_reader: None) -> None:
    imported(stock, registry)
    before = (registry.list_records(limit=100), registry.counts())
    again = imported(stock, registry)
    assert not again.taken.changed
    assert again.taken.n_known == 4
    assert (registry.list_records(limit=100), registry.counts()) == before


def test_bad_lines_are_reported_and_the_others_are_kept(folder: Path, registry: Registry, one_reader: None) -> None:
    append(folder / RECORDS_FILE, *(["x"] for _ in range(12)))
    report = imported(folder, registry)
    assert report.taken.n_priors == 4
    found = report.as_json()
    assert (found["n_bad"], len(found["bad"])) == (12, 10)
    assert found["bad"][0] == {"file": RECORDS_FILE, "number": 6, "reason": "it is not a workload's number and a record"}


def test_a_folder_of_which_nothing_can_be_used(folder: Path, registry: Registry, one_reader: None) -> None:
    (folder / RECORDS_FILE).write_text("[\n", encoding="utf-8")
    with pytest.raises(CorruptBlob, match=rf"no record of .* can be used: {RECORDS_FILE}:1: "):
        imported(folder, registry)
    assert not any(registry.counts().values())


@pytest.fixture
def pools(tmp_path: Path, one_reader: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of their own lock, that measure in a hurry."""

    def small(target: Any) -> WarmPool:
        return WarmPool(target, n_workers=1, min_repeat_ms=2, lock_path=tmp_path / "measuring.lock")

    monkeypatch.setattr(imports, "WarmPool", small)


def exact(registry: Registry, mod: Any, depth: int) -> TuningRecord | None:
    workload = workload_of(canonicalise(mod))
    environment = current_environment(TARGET, {**WarmPool.default_measurement(), "min_repeat_ms": 2})
    [match] = registry.lookup([workload], environment, {workload.key: depth})
    return match.record


@pytest.mark.slow
def test_what_passes_its_check_here_is_published_with_the_times_of_here(
    tmp_path: Path, registry: Registry, pools: None
) -> None:
    folder = write_stock(tmp_path / "logs", [(product(128), drawn(product(128), 4))])
    report = imported(folder, registry, measure=True)
    assert report.remeasured
    assert report.n_wrong == 0
    assert report.taken.n_priors == 4
    found = exact(registry, product(128), depth=4)
    if report.n_slower == remeasuring.ATTEMPTS:  # none of the drawn ones is any good on this machine
        assert found is None
        return
    assert report.taken.n_published == 1
    assert found is not None
    assert (found.state, found.trials, found.depth) == (RecordState.PUBLISHED, 4, 4)
    assert found.median_s not in (1e-3, 2e-3, 3e-3, 4e-3)
    assert found.median_s <= (found.untuned_s or 0.0)


def test_what_computes_something_else_here_is_never_used_again(
    stock: Path, registry: Registry, pools: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(pool: WarmPool, cases: Sequence[Any], **_: Any) -> list[Comparison]:
        return [Comparison(False, error="argument 2 differs") for _ in cases]

    monkeypatch.setattr(remeasuring, "compare_many", differ)
    report = imported(stock, registry, measure=True)
    assert (report.n_wrong, report.taken.n_published) == (4, 0)
    records = registry.list_records(limit=100)
    assert {record.state for record in records} == {RecordState.QUARANTINED}
    assert {record.reason for record in records} == {"it failed its check: argument 2 differs"}
    assert len(records) == 8


def test_what_is_slower_here_stays_a_prior(
    stock: Path, registry: Registry, pools: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(pool: WarmPool, cases: Sequence[Any], **_: Any) -> list[Comparison]:
        return [Comparison(True, reference_s=(1e-3,), tuned_s=(2e-3,)) for _ in cases]

    monkeypatch.setattr(remeasuring, "compare_many", slower)
    report = imported(stock, registry, measure=True)
    assert (report.n_slower, report.taken.n_published) == (4, 0)
    assert {record.state for record in registry.list_records(limit=100)} == {RecordState.MEASURED}


# Out, for stock TVM


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> NetworkSpec:
    path = small_networks.onnx_model(tmp_path_factory.mktemp("network") / "net.onnx", shape=(1, 3, 16, 16))
    return NetworkSpec("net", "net", "v1", str(path), target='{"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2}')


@pytest.fixture(scope="module")
def lowered(spec: NetworkSpec) -> LoweredNetwork:
    return lower(import_network(spec), resolve_target(spec.target))


def publish(registry: Registry, lowered: LoweredNetwork, *, untuned: bool = False) -> list[TuningRecord]:
    """A published record of each task of the network, which is registered."""
    environment = current_environment(lowered.target, WarmPool.default_measurement())
    registry.put_environment(environment)
    tasks = tuple(item.task for item in lowered.tasks)
    registry.register_network(NetworkVersion("net", "v1", "net.onnx", "0" * 64, {"x": (1, 3, 16, 16)}, tasks, 1000.0))
    records = []
    for item in lowered.tasks:
        [schedule] = drawn(item.mod, 1)
        sketch, decisions = (UNTUNED_SKETCH, ()) if untuned else read_decisions(schedule)
        records.append(
            TuningRecord(
                workload_key=item.task.workload.key,
                environment_key=environment_key(environment),
                trace=[] if untuned else trace_as_json(schedule),
                sketch=sketch,
                decisions=decisions,
                run_times_s=(1.25e-4, 1.5e-4, 1.75e-4),
                trials=8,
                depth=8,
                state=RecordState.CHECKED,
                run_id="here",
                created_at=2000.0,
            )
        )
    return registry.publish(records)


STOCK_TVM = """
import json, sys
import tvm
from tvm import relax
from bcd_registry.model import NetworkSpec
from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.networks import import_network
from bcd_tuner.targets import resolve_target
from bcd_tuner.tasks import lower

source, folder, target = sys.argv[1:]
target = resolve_target(target)
import_intrinsics(target.kind.name)
mod = lower(import_network(NetworkSpec("net", "net", "v1", source)), target).mod
with target, tvm.transform.PassContext(opt_level=3):
    tuned = relax.transform.MetaScheduleApplyDatabase(folder)(mod)
functions = [f for f in tuned.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
print(json.dumps([sum(bool((f.attrs or {}).get("tirx.is_scheduled")) for f in functions), len(functions)]))
"""


def test_stock_tvm_applies_an_exported_folder(
    registry: Registry, lowered: LoweredNetwork, spec: NetworkSpec, tmp_path: Path
) -> None:
    publish(registry, lowered)
    report = export_database(spec, registry, tmp_path / "out", nothing)
    assert (report.n_tasks, report.n_schedules, report.n_untuned, report.missing) == (
        len(lowered.tasks),
        len(lowered.tasks),
        0,
        (),
    )
    assert [line[1][1] for line in records_in(tmp_path / "out")] == [[1.25e-4, 1.5e-4, 1.75e-4]] * len(lowered.tasks)
    arguments = [sys.executable, "-c", STOCK_TVM, spec.source, str(tmp_path / "out"), spec.target]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    n_scheduled, n_functions = json.loads(done.stdout.splitlines()[-1])
    assert n_scheduled == len(lowered.tasks) <= n_functions


def test_an_exported_folder_comes_back_under_the_same_keys(
    registry: Registry, lowered: LoweredNetwork, spec: NetworkSpec, tmp_path: Path, reader: Reader
) -> None:
    published = {record.workload_key: record for record in publish(registry, lowered)}
    export_database(spec, registry, tmp_path / "out", nothing)
    found = read(tmp_path / "out", reader)
    assert found.bad == []
    assert {item.workload.key for item in found.workloads} == set(published)
    for item in found.workloads:
        [schedule] = item.schedules
        record = published[item.workload.key]
        assert (*schedule.key, schedule.run_times_s) == (record.sketch, record.decisions, record.run_times_s)


def test_tasks_without_a_result_are_named(
    registry: Registry, lowered: LoweredNetwork, spec: NetworkSpec, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="serves no schedule for net here"):
        export_database(spec, registry, tmp_path / "out", nothing)
    assert not (tmp_path / "out" / RECORDS_FILE).exists()
    publish(registry, lowered, untuned=True)
    with pytest.raises(NotFound, match="serves no schedule for net here"):
        export_database(spec, registry, tmp_path / "out", nothing)


def test_nothing_is_written_over(registry: Registry, spec: NetworkSpec, folder: Path) -> None:
    before = (folder / RECORDS_FILE).read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        export_database(spec, registry, folder, nothing)
    assert (folder / RECORDS_FILE).read_bytes() == before


# Bundles, where the compiler is needed


def bundled(registry: Registry, lowered: LoweredNetwork) -> Bundle:
    publish(registry, lowered)
    return read_bundle(pack_bundle(exchange.bundle_of(registry, "net", "v1")[0]))


@pytest.fixture
def other() -> Iterator[Registry]:
    with SqlCatalog.open_memory() as catalog:
        yield Registry(catalog, MemoryBlobs(), clock=lambda: 6000.0)


def test_the_words_for_an_untuned_program_agree() -> None:
    assert exchange._UNTUNED == UNTUNED_SKETCH


def test_a_bundle_whose_workload_is_described_wrongly_is_refused(
    registry: Registry, other: Registry, lowered: LoweredNetwork
) -> None:
    bundle = bundled(registry, lowered)
    [first, *rest] = bundle.network.tasks
    lies = dataclasses.replace(first, workload=dataclasses.replace(first.workload, extents=(1, 1)))
    network = dataclasses.replace(bundle.network, tasks=(lies, *rest))
    with pytest.raises(CorruptBlob, match="its description says another extents"):
        import_bundle(dataclasses.replace(bundle, network=network), other, nothing)
    assert not any(other.counts().values())


def agree(pool: WarmPool, cases: Sequence[Any], **_: Any) -> list[Comparison]:
    return [Comparison(True, reference_s=(2e-3,), tuned_s=(1e-3,)) for _ in cases]


def test_schedules_of_a_bundle_are_measured_on_ones_own_programs(
    registry: Registry,
    other: Registry,
    lowered: LoweredNetwork,
    spec: NetworkSpec,
    pools: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remeasuring, "compare_many", agree)
    bundle = bundled(registry, lowered)
    report = import_bundle(bundle, other, nothing, spec=spec)
    assert report.bad == ()
    assert (report.taken.n_published, report.taken.n_priors) == (len(lowered.tasks), len(lowered.tasks))
    published = [record for record in other.list_records() if record.state is RecordState.PUBLISHED]
    assert {(record.run_times_s, record.untuned_s, record.depth) for record in published} == {((1e-3,), 2e-3, 8)}
    assert {record.environment_key for record in published}.isdisjoint(record.environment_key for record in bundle.records)


def test_a_schedule_of_a_bundle_that_is_not_what_it_says_is_not_measured(
    registry: Registry,
    other: Registry,
    lowered: LoweredNetwork,
    spec: NetworkSpec,
    pools: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remeasuring, "compare_many", agree)
    bundle = bundled(registry, lowered)
    lying = dataclasses.replace(bundle.records[0], sketch="0" * 64)
    report = import_bundle(dataclasses.replace(bundle, records=(lying, *bundle.records[1:])), other, nothing, spec=spec)
    [bad] = report.bad
    assert bad.describe() == f"record {lying.id[:12]}: its decisions are not those of its trace"
    assert report.taken.n_published == len(lowered.tasks) - 1


def test_a_schedule_is_a_plain_program_after_every_postprocessor() -> None:
    """What searches find is not taken for hostile."""
    from bcd_tuner.strange_programs import replay_on_module

    for mod in (canonicalise(product()), canonicalise(scores()), programs.convolution(8, 8, activated=True)):
        for schedule in drawn(mod, 3):
            assert replay_on_module(tvm.ir.save_json(mod), trace_as_json(schedule)).decisions == read_decisions(schedule)[1]
    assert Schedule(product()).mod is not None
