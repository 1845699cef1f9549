"""Descriptions of real workloads compared, and a plan with its reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.comparison import compare_workloads
from bcd_registry.descriptions import MAIN_BLOCK, outline, read_program
from bcd_registry.differences import Aspect, in_words
from bcd_registry.explain import Cause, Relation
from bcd_registry.model import Grade, NetworkSpec, RecordState, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.staleness import FieldClass
from bcd_tuner.explaining import ExplainedPlan, explain_network
from bcd_tuner.plan import UNTUNED_SKETCH
from bcd_tuner.report import ProgressEvent
from bcd_tuner.session import TuneRequest, look_up
from tests.tuner.small_networks import conv_network, matmul_network, softmax_network, workload
from tests.tuner.test_session import write_network

TRIALS = 8


@pytest.fixture(scope="module")
def conv() -> Workload:
    return workload(conv_network())


@pytest.mark.parametrize(
    ("change", "aspect", "where"),
    [
        ({"size": 14}, Aspect.EXTENT, MAIN_BLOCK),
        ({"filters": 24}, Aspect.EXTENT, MAIN_BLOCK),
        ({"channels": 4}, Aspect.EXTENT, f"{MAIN_BLOCK}, reduction axis"),
        ({"kernel": 5}, Aspect.EXTENT, f"{MAIN_BLOCK}, reduction axis"),
        ({"padding": 0}, Aspect.EXPRESSION, "prologue 1"),
        ({"stride": 2}, Aspect.ACCESS, MAIN_BLOCK),
        ({"dilation": 2}, Aspect.ACCESS, MAIN_BLOCK),
        ({"dtype": "float16"}, Aspect.DTYPE, ""),
        ({"epilogue": "sigmoid"}, Aspect.EPILOGUE, "epilogue"),
        ({"epilogue": "none"}, Aspect.EPILOGUE, "epilogue"),
        ({"weight_is_input": True}, Aspect.WEIGHT, "argument"),
    ],
)
def test_what_an_option_of_a_convolution_changes_is_named(
    conv: Workload, change: dict[str, Any], aspect: Aspect, where: str
) -> None:
    other = workload(conv_network(**change))
    for one, two in ((conv, other), (other, conv)):
        found = compare_workloads(one, two)
        assert [d for d in found if d.aspect is aspect and d.where.startswith(where)], [d.describe() for d in found]
        assert all(d.aspect is not Aspect.STRUCTURE for d in found)
        assert len(in_words(found)) <= len(found)


def test_a_constant_is_named_with_its_value() -> None:
    one, other = (workload(conv_network(epilogue="leaky", slope=slope)) for slope in (0.25, 0.5))
    assert [(d.aspect, d.there, d.here) for d in compare_workloads(one, other)] == [(Aspect.CONSTANT, 0.25, 0.5)]


def test_programs_of_other_operators_can_be_compared(conv: Workload) -> None:
    others = [workload(matmul_network()), workload(softmax_network())]
    assert all(read_program(w.description) is not None for w in (conv, *others))
    assert all(compare_workloads(conv, other) for other in others)
    assert compare_workloads(conv, workload(conv_network())) == []
    assert outline(conv) == outline(workload(conv_network(filters=24, size=20)))


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("networks")
    return {
        "v1": write_network(folder / "v1.onnx", channels=8, classes=10),
        "v2": write_network(folder / "v2.onnx", channels=16, classes=10),
    }


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        yield Registry(catalog, MemoryBlobs(), clock=lambda: 2000.0)


def request_of(networks: dict[str, Path], version: str) -> TuneRequest:
    return TuneRequest(NetworkSpec("tiny", "tiny", version, str(networks[version]), trials=TRIALS))


def silent(event: ProgressEvent) -> None:
    """Nobody looks."""


def explained(networks: dict[str, Path], version: str, registry: Registry) -> ExplainedPlan:
    found = explain_network(request_of(networks, version), registry, progress=silent, clock=lambda: 2000.0)
    json.dumps(found.as_json(), allow_nan=False)
    assert tuple(task.plan for task in found.tasks) == found.plan.tasks
    assert all(task.explanation.grade is task.plan.grade for task in found.tasks)
    return found


def test_a_next_version_is_explained_by_the_last(networks: dict[str, Path], registry: Registry) -> None:
    nothing = explained(networks, "v1", registry)
    assert all(t.explanation.closest is None and t.plan.grade is Grade.COLD for t in nothing.tasks)

    prepared, _ = look_up(request_of(networks, "v1"), registry, progress=silent)
    key = registry.put_environment(prepared.planner.environment)
    registry.put_workloads([task.workload for task in prepared.tasks])
    records = [
        TuningRecord(
            workload_key=task.workload.key,
            environment_key=key,
            trace=[],
            sketch=UNTUNED_SKETCH,
            decisions=(),
            run_times_s=(1e-3,),
            trials=TRIALS,
            depth=prepared.planner.depths[task.workload.key],
            state=RecordState.CHECKED,
            run_id="run-1",
        )
        for task in prepared.tasks
    ]
    registry.publish(records)
    assert all(t.plan.grade is Grade.EXACT for t in explained(networks, "v1", registry).tasks)

    found = explained(networks, "v2", registry)
    grades = {task.plan.grade for task in found.tasks}
    assert Grade.EXACT in grades
    siblings = [t.explanation for t in found.tasks if t.plan.grade is Grade.CLUSTER]
    assert siblings
    for explanation in siblings:
        assert explanation.closest is not None
        assert explanation.closest.relation is Relation.CLUSTER
        assert Aspect.EXTENT in {d.aspect for d in explanation.closest.differences}
        assert {d.field_class for d in explanation.closest.environment} <= {FieldClass.NOTE}

    event = registry.invalidate([record.id for record in records], "the fan had stopped")
    taken = explained(networks, "v1", registry)
    assert all(t.plan.grade is Grade.COLD for t in taken.tasks)
    for task in taken.tasks:
        own = task.explanation.left_out[0]
        assert (own.cause, own.relation, own.reason) == (Cause.INVALIDATED, Relation.WORKLOAD, event.reason)
