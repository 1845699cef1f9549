"""Values to test with: each valid by itself, and different where the arguments say so."""

from __future__ import annotations

import hashlib
from typing import Any

from bcd_registry.model import (
    CostModelSnapshot,
    Environment,
    Event,
    EventKind,
    NetworkVersion,
    RecordState,
    Refutation,
    RunSummary,
    Task,
    TuningRecord,
    Workload,
)

ENVIRONMENT = Environment(
    {
        "tvm": "0.27.0",
        "tvm_ffi": "0.1.14",
        "llvm": "20.1.0",
        "target": {"kind": "llvm", "mcpu": "znver3", "num-cores": 2},
        "isa": ["avx2", "fma", "sse4.2"],
        "cores": 2,
        "measurement": {"repeats": 3, "flush": True},
        "cpu_model": "AMD EPYC",
        "calibration_ms": 12.5,
        "load": 0.25,
    }
)
"""An environment with every known field."""

TRACE = [[["SamplePerfectTile", ["l0"], [4, 64], ["v1", "v2"]]], [[0, [8, 4]]]]
"""A small trace as TVM spells it: instructions and decisions."""


def hex_of(name: str) -> str:
    """Some 64 hex digits that stand for the name."""
    return hashlib.sha256(name.encode()).hexdigest()


def make_environment(**changes: Any) -> Environment:
    """`ENVIRONMENT` with other fields; one that is None is left out."""
    fields = {**ENVIRONMENT.fields, **changes}
    return Environment({name: value for name, value in fields.items() if value is not None})


def make_workload(name: str, *, cluster: str = "", anchor: str = "", extents: tuple[int, ...] = (16, 32, 64)) -> Workload:
    """A workload; a cluster of its own and an anchor of its own cluster when none is named."""
    return Workload(
        key=hex_of(f"workload {name}"),
        cluster=hex_of(f"cluster {cluster or name}"),
        anchor=hex_of(f"anchor {anchor or cluster or name}"),
        extents=extents,
        anchor_extents=extents[:2],
        flops=2.0 * extents[0] if extents else 1.0,
        bytes_moved=1024.0,
        op="conv2d+relu",
        description=f'{{"name":"{name}"}}',
    )


def make_record(workload: Workload, environment_key: str, /, **changes: Any) -> TuningRecord:
    """A measured record of 1 ms; `changes` may set any field."""
    fields: dict[str, Any] = {
        "workload_key": workload.key,
        "environment_key": environment_key,
        "trace": TRACE,
        "sketch": hex_of("sketch"),
        "decisions": (("SamplePerfectTile", (8, 4)), ("SampleCategorical", 2)),
        "run_times_s": (1.1e-3, 1e-3, 0.9e-3),
        "trials": 32,
        "depth": 32,
        "state": RecordState.MEASURED,
        "run_id": "run-1",
        "parent_id": None,
        "untuned_s": 2e-3,
        "created_at": 1000.0,
    }
    return TuningRecord(**{**fields, **changes})


def make_refutation(record: TuningRecord, workload: Workload, /, **changes: Any) -> Refutation:
    """The record misled the workload, an octave away, where it was measured; `changes` may set any field."""
    fields: dict[str, Any] = {
        "record_id": record.id,
        "workload_key": workload.key,
        "cluster": workload.cluster,
        "distance": 1.0,
        "environment_key": record.environment_key,
        "run_id": "ab12cd34ef567890",
        "ratio": 1.5,
        "created_at": 1000.0,
    }
    return Refutation(**{**fields, **changes})


def make_network(name: str, version: str, workloads: tuple[Workload, ...], **changes: Any) -> NetworkVersion:
    """A network with one task for each workload."""
    fields: dict[str, Any] = {
        "name": name,
        "version": version,
        "source": f"{name}.onnx",
        "digest": hex_of(f"{name} {version}"),
        "shapes": {"input": (1, 3, 48, 192)},
        "tasks": tuple(Task(f"fused_{i}", workload, i + 1) for i, workload in enumerate(workloads)),
        "created_at": 1000.0,
    }
    return NetworkVersion(**{**fields, **changes})


def make_run(run_id: str, **changes: Any) -> RunSummary:
    """A finished run."""
    fields: dict[str, Any] = {
        "id": run_id,
        "network": "ocr",
        "version": "1",
        "environment_key": hex_of("environment"),
        "seed": 2**63 + 1,
        "trials": 64,
        "tuning_s": 12.5,
        "finished": True,
        "created_at": 1000.0,
        "report": {"schema": 1, "tasks": []},
    }
    return RunSummary(**{**fields, **changes})


def make_snapshot(**changes: Any) -> CostModelSnapshot:
    """A snapshot whose bytes mean nothing."""
    fields: dict[str, Any] = {
        "target": '{"kind":"llvm"}',
        "booster": b"booster",
        "samples": b"samples",
        "metadata": {"n_features": 164, "rank_accuracy": 0.75},
        "created_at": 1000.0,
    }
    return CostModelSnapshot(**{**fields, **changes})


def make_event(*records: str, **changes: Any) -> Event:
    """The records were taken back; `changes` may set any field."""
    fields: dict[str, Any] = {
        "id": "e0",
        "kind": EventKind.INVALIDATED,
        "reason": "a bad driver",
        "selection": {},
        "records": tuple(sorted(records)),
        "created_at": 2000.0,
    }
    return Event(**{**fields, **changes})
