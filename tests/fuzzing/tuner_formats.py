"""The formats that the tuner reads: traces and their replay, cost models, and TVM's own database folders."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
import zstandard
from tvm.s_tir.analysis import verify_well_formed

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import CostModelSnapshot, canonical_json, digest_of
from bcd_registry.testing.values import hex_of
from bcd_registry.traces import MAX_TRACE_BYTES, pack_trace, unpack_trace
from bcd_tuner.interchange import RECORDS_FILE, WORKLOADS_FILE, open_reader, read_database
from bcd_tuner.latency_model import LatencyModel
from bcd_tuner.replay import replay, trace_as_json
from bcd_tuner.search import TaskSearch
from bcd_tuner.snapshots import read_snapshot, write_snapshot
from tests.tuner import tuning_programs as programs

from .formats import Format, require
from .mutations import Generator, mutate_archive, mutate_bytes, mutate_json, one_of

WIDTH = 8
_PROGRAMS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: programs.matmul(16, 16, 16),
    "softmax": lambda: programs.softmax(16, 16),
    "convolution": lambda: programs.convolution(8, 8, activated=True),
}


def trace_format(folder: Path) -> Format:
    """A trace blob under a digest that fits, replayed on the program it is for, whose number is the first byte."""
    modules = [make() for make in _PROGRAMS.values()]
    keys = [hex_of(name) for name in _PROGRAMS]
    traces = [[trace_as_json(schedule) for schedule in _schedules(mod)] for mod in modules]

    def mutate(rng: Generator) -> bytes:
        number = int(rng.integers(len(modules)))
        trace = one_of(rng, traces[number])
        seeds = [pack_trace(keys[number], t) for t in traces[number]]
        return bytes([number]) + _mutated_trace(rng, keys[number], trace, seeds)

    def read(data: bytes) -> None:
        number, blob = data[0], data[1:]
        trace = unpack_trace(blob, keys[number])
        require(unpack_trace(pack_trace(keys[number], trace), keys[number]) == trace, "what was read can be stored again")
        schedule = replay(modules[number], trace)
        _require_schedule(modules[number], schedule)

    return Format("trace", mutate, read)


def _mutated_trace(rng: Generator, key: str, trace: Any, seeds: list[bytes]) -> bytes:
    how = rng.random()
    if how < 0.15:
        return mutate_bytes(rng, one_of(rng, seeds), seeds)
    if how < 0.2:
        return _bomb(rng)
    if how < 0.3:
        envelope = {"format": 1, "workload_key": key, "trace": trace}
        return _compressed(mutate_json(rng, envelope))
    text = mutate_json(rng, trace) if how < 0.9 else mutate_bytes(rng, canonical_json(trace).encode(), [])
    return _compressed(b'{"format":1,"trace":' + text + b',"workload_key":"' + key.encode() + b'"}')


def _compressed(text: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(text)


def _bomb(rng: Generator) -> bytes:
    """Far more bytes than there are: stated, not stated, or stated wrong."""
    size = int(one_of(rng, (MAX_TRACE_BYTES // 2, MAX_TRACE_BYTES + 1, 8 * MAX_TRACE_BYTES)))
    stream = zstandard.ZstdCompressor(write_content_size=bool(rng.random() < 0.5)).compressobj()
    bomb = _packed_filler(size, stream)
    return mutate_bytes(rng, bomb, []) if rng.random() < 0.5 else bomb


def _packed_filler(size: int, stream: Any) -> bytes:
    return bytes(stream.compress(b"[" + b" " * size) + stream.flush())


def _schedules(mod: Any) -> list[Any]:
    context, spaces = programs.context_of(mod)
    search = TaskSearch(mod, spaces, context.space_generator.postprocs, rng=np.random.default_rng(0))
    return [candidate.schedule for candidate in search.next_round(6, lambda candidates: None)]


def _require_schedule(mod: Any, schedule: Any) -> None:
    """It is a program, and its own trace leads to it again."""
    require(bool(verify_well_formed(schedule.mod, False)), "a schedule is a well-formed program")
    again = replay(mod, trace_as_json(schedule))
    require(bool(tvm_ffi.structural_equal(again.mod, schedule.mod)), "a schedule's own trace leads to it")


def booster_format(folder: Path) -> Format:
    """The trees of a cost model, under a digest that fits."""
    snapshot = _snapshot()
    features = np.random.default_rng(5).random((32, WIDTH), dtype=np.float32)

    def read(data: bytes) -> None:
        model = LatencyModel(seed=0)
        model.pretrain(
            dataclasses.replace(snapshot, booster=data, metadata={**snapshot.metadata, "booster": digest_of(data)}), WIDTH
        )
        scores = model.predict(features, "unknown")
        require(scores is not None and bool(np.isfinite(scores).all()), "a score is a number")

    return Format("booster", lambda rng: mutate_bytes(rng, snapshot.booster, [snapshot.booster]), read)


def samples_format(folder: Path) -> Format:
    """The samples of a cost model, which are an archive of arrays."""
    snapshot = _snapshot()

    def mutate(rng: Generator) -> bytes:
        if rng.random() < 0.4:
            return mutate_bytes(rng, snapshot.samples, [snapshot.samples])
        return mutate_archive(rng, snapshot.samples, [snapshot.samples])

    def read(data: bytes) -> None:
        model = LatencyModel(seed=0)
        model.pretrain(dataclasses.replace(snapshot, samples=data), WIDTH)
        samples = model.samples
        n = len(samples)
        require(n == len(samples.features) == len(samples.workloads) == len(samples.clusters), "samples are whole")
        require(all(bool(np.isfinite(row).all()) and row.shape == (WIDTH,) for row in samples.features), "features are numbers")
        require(all(latency > 0.0 for latency in samples.latencies_s), "a latency is positive")
        require(bool(((labels := samples.labels()) >= 0.0).all() and (labels <= 1.0).all()), "a label is a share")

    return Format("samples", mutate, read)


def snapshot_format(folder: Path) -> Format:
    """The description of a snapshot in a folder."""
    snapshot = _snapshot()
    write_snapshot(snapshot, folder)
    path = folder / "snapshot.json"
    seed = path.read_bytes()
    value = json.loads(seed)

    def mutate(rng: Generator) -> bytes:
        return mutate_json(rng, value) if rng.random() < 0.8 else mutate_bytes(rng, seed, [seed])

    def read(data: bytes) -> None:
        path.write_bytes(data)
        found = read_snapshot(folder)
        require([type(found.target), type(found.created_at)] == [str, float], "a target is text, a time a number")
        canonical_json(dict(found.metadata))
        LatencyModel(seed=0).pretrain(found, WIDTH)

    return Format("snapshot", mutate, read)


@functools.cache
def _snapshot() -> CostModelSnapshot:
    model = LatencyModel(seed=0)
    rng = np.random.default_rng(4)
    for number in range(3):
        features = rng.random((40, WIDTH), dtype=np.float32)
        model.update(features, list(1e-3 + features[:, 0].astype(float) * 1e-3), f"w{number}", f"c{number}")
    snapshot = model.snapshot('{"kind":"llvm"}', WIDTH)
    assert snapshot is not None
    return dataclasses.replace(snapshot, created_at=1000.0)


@contextlib.contextmanager
def _reader() -> Iterator[Any]:
    with open_reader(programs.TARGET) as reader:
        yield reader


def database_format(folder: Path) -> Format:
    """The two files of TVM's `JSONDatabase`, which are read in a process that may crash; their lengths come first."""
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord

    mod = programs.matmul(8, 8, 8)
    source = folder / "source"
    source.mkdir()
    database = JSONDatabase(str(source / WORKLOADS_FILE), str(source / RECORDS_FILE), work_dir=None)
    workload = database.commit_workload(mod)
    for schedule in _schedules(mod)[:3]:
        info = ArgInfo.from_entry_func(mod, remove_preproc=True)
        database.commit_tuning_record(TuningRecord(schedule.trace, workload, [1e-3], programs.TARGET, info))
    workloads, records = ((source / name).read_bytes() for name in (WORKLOADS_FILE, RECORDS_FILE))
    lines = [json.loads(line) for line in records.splitlines()]
    opened = contextlib.ExitStack()
    reader = opened.enter_context(_reader())
    found_in = folder / "found"
    found_in.mkdir()

    def mutate(rng: Generator) -> bytes:
        how = rng.random()
        one, other = workloads, records
        if how < 0.3:
            one = mutate_bytes(rng, workloads, [workloads])
        elif how < 0.5:
            one = mutate_json(rng, json.loads(workloads)) + b"\n"
        elif how < 0.6:
            other = mutate_bytes(rng, records, [records, workloads])
        else:
            other = mutate_json(rng, one_of(rng, lines)) + b"\n" + records
        return len(one).to_bytes(4, "big") + one + other

    def read(data: bytes) -> None:
        n = int.from_bytes(data[:4], "big")
        (found_in / WORKLOADS_FILE).write_bytes(data[4 : 4 + n])
        (found_in / RECORDS_FILE).write_bytes(data[4 + n :])
        reader._n_lost = 0  # each input is a folder of its own
        found = read_database(found_in, reader, lambda: None)
        for kept in found.workloads:
            require(all(0.0 < t < float("inf") for s in kept.schedules for t in s.run_times_s), "a latency is positive")
        if found.bad or not any(kept.schedules for kept in found.workloads):
            require(all("\n" not in line.reason for line in found.bad), "a reason has one line")
            raise CorruptBlob("a line of it cannot be used")

    return Format("database", mutate, read)


TUNER_FORMATS: dict[str, Callable[[Path], Format]] = {
    "trace": trace_format,
    "booster": booster_format,
    "samples": samples_format,
    "snapshot": snapshot_format,
    "database": database_format,
}
"""Makers by name: each is given an empty folder of its own."""
