"""Reports, plans and a filled registry, as the command line gets them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bcd_registry.model import (
    Environment,
    Grade,
    NetworkVersion,
    PriorSource,
    RecordState,
    RunSummary,
    Task,
    TuningRecord,
    Workload,
)
from bcd_registry.registry import Registry
from bcd_tuner.report import CurvePoint, Latency, Plan, Saving, TaskPlan, TaskReport, TimeSplit, TuneReport

_TASKS = (
    ("conv2d+add+relu", "aa11", Grade.EXACT, 2, 4.0, 0.8),
    ("conv2d+add+relu", "aa11", Grade.CLUSTER, 1, 2.5, 0.5),
    ("conv2d+add+relu", "aa11", Grade.COLD, 1, 1.5, 0.5),
    ("conv2d+add+hard_swish+multiply+add", "bb22", Grade.CLUSTER, 3, 1.0, 0.25),
    ("conv2d+add+relu", "cc33", Grade.ANCHOR, 1, 0.75, 0.25),
    ("matmul+add", "dd44", Grade.COLD, 1, 0.5, 0.125),
    ("softmax", "ee55", Grade.EXACT, 1, 0.02, 0.0125),
    ("mean", "ff66", Grade.EXACT, 1, 0.01, 0.005),
    ("reshape", "9977", Grade.COLD, 1, 0.001, 0.001),
)


def make_report(**changes: Any) -> TuneReport:
    """A tune that went well, of nine tasks in seven clusters."""
    tasks = tuple(
        TaskReport(
            name=f"fused_{index}",
            op=op,
            workload_key=f"{index:064x}",
            cluster=f"{cluster:0<64}",
            weight=weight,
            grade=grade,
            prior=PriorSource.NONE if grade is Grade.COLD else PriorSource.REGISTRY,
            trials=0 if grade is Grade.EXACT else 16,
            seconds=0.0 if grade is Grade.EXACT else 7.5,
            before_ms=before_ms,
            after_ms=after_ms,
            checked=True,
            note="",
        )
        for index, (op, cluster, grade, weight, before_ms, after_ms) in enumerate(_TASKS)
    )
    report = TuneReport(
        run_id="0123456789abcdef",
        network="ppocr-det",
        version="v6",
        target='{"kind":"llvm"}',
        seed=0,
        depth=32,
        trials=sum(task.trials for task in tasks),
        wall_s=61.5,
        time_s=TimeSplit(search=4.5, build=22.5, run=15.75, other=2.25),
        latency_ms=Latency(
            untuned=16.75,
            tuned=4.1,
            estimated_untuned=16.281,
            estimated_tuned=3.7435,
            onnxruntime=5.2,
            untuned_range=(16.5, 17.2),
            tuned_range=(4.0, 4.4),
            onnxruntime_range=(5.1, 5.5),
            threads=2,
        ),
        checked=True,
        tasks=tasks,
        curve=tuple(CurvePoint(seconds=4.5 * step, trials=8 * step, estimated_ms=16.281 / (1 + step)) for step in range(11)),
        saving=Saving(trials=112, seconds=52.5, basis="0.47 s a trial over 320 trials of ppocr-det v4"),
        first_candidate_s=4.25,
        notes=("conv2d+add+relu: the prior misled, so it was searched",),
        curve_png="/home/somebody/.local/share/bcd-registry/runs/ppocr-det-v6-01234567.png",
        mlflow_run_id="feedbeef",
    )
    return replace(report, **changes)


def make_plan() -> Plan:
    """What the same network would cost."""
    tasks = tuple(
        TaskPlan(
            name=f"fused_{index}",
            op=op,
            workload_key=f"{index:064x}",
            cluster=f"{cluster:0<64}",
            weight=weight,
            grade=grade,
            prior=PriorSource.NONE if grade is Grade.COLD else PriorSource.REGISTRY,
            trials=0 if grade is Grade.EXACT else 16,
            seconds=0.0 if grade is Grade.EXACT else 7.5,
            known_ms=after_ms if grade is Grade.EXACT else None,
            note="",
        )
        for index, (op, cluster, grade, weight, _, after_ms) in enumerate(_TASKS)
    )
    return Plan("ppocr-det", "v6", '{"kind":"llvm"}', tasks, 0.46875, "0.47 s a trial over 320 trials of ppocr-det v4")


def fill_registry(registry: Registry) -> TuningRecord:
    """One network of one task with one record, and the run that made them."""
    workload = Workload("ab" * 32, "cd" * 32, "ef" * 32, (1, 64, 56, 56), 2.3e8, 1e6, "conv2d+relu", "{}")
    environment = registry.put_environment(Environment({"tvm": "0.27.0", "cores": 2}))
    network = NetworkVersion("net", "v1", "net.onnx", "12" * 32, {"x": (1, 3, 56, 56)}, (Task("conv", workload, 3),), 1.7e9)
    registry.register_network(network)
    record = TuningRecord(
        workload_key=workload.key,
        environment_key=environment,
        trace=[["SamplePerfectTile", [4, 14]]],
        sketch="34" * 32,
        decisions=(("SamplePerfectTile", (4, 14)), ("SampleCategorical", 2)),
        run_times_s=(0.001, 0.0012, 0.0011),
        trials=32,
        depth=32,
        state=RecordState.CHECKED,
        run_id="run-1",
        untuned_s=0.0044,
        created_at=1.7e9,
    )
    registry.publish([record])
    registry.put_run(RunSummary("run-1", "net", "v1", environment, 0, 32, 16.0, True, 1.7e9, {}))
    return record
