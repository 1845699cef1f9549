"""`explain`: why tasks are graded as they are, and where two things differ."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType
from typer.testing import CliRunner

from bcd_cli.main import app
from bcd_cli.rendering.explain import render_comparison, render_explained
from bcd_registry.differences import Aspect, WorkloadDifference
from bcd_registry.explain import Cause, Closest, Explanation, LeftOut, RecordGap, Relation
from bcd_registry.model import Environment, Grade, PriorSource, RecordState, TuningRecord, Workload
from bcd_registry.naming import Comparison, Kind
from bcd_registry.registry import Registry
from bcd_registry.settings import load_settings, open_registry
from bcd_registry.staleness import compare
from bcd_tuner.explaining import ExplainedPlan, ExplainedTask
from bcd_tuner.report import Plan, TaskPlan
from tests.cli.conftest import Invoke
from tests.cli.goldens import assert_golden
from tests.cli.values import fill_registry

OLD = Environment({"tvm": "0.26.0", "isa": ["avx2", "fma"], "target": {"mcpu": "znver3", "cores": 2}, "cpu_model": "EPYC"})
NEW = Environment({"tvm": "0.27.0", "isa": ["fma", "sve"], "target": {"mcpu": "znver4", "cores": 2}, "cpu_model": "Xeon"})


def workload(index: int, op: str, *extents: int) -> Workload:
    key = f"{index:x}{index + 7:x}" * 32
    return Workload(key, "c1" * 32, "a1" * 32, extents, 1e8, 1e6, op, json.dumps({"index": index}), extents)


def record_of(of: Workload, **changes: Any) -> TuningRecord:
    fields: dict[str, Any] = {
        "workload_key": of.key,
        "environment_key": "12" * 32,
        "trace": None,
        "sketch": "34" * 32,
        "decisions": (),
        "run_times_s": (0.001,),
        "trials": 32,
        "depth": 32,
        "state": RecordState.PUBLISHED,
        "run_id": "run-1",
    }
    return TuningRecord(**{**fields, **changes})


CONV, HALF = workload(1, "conv2d+add+relu", 1, 64, 56, 56), workload(2, "conv2d+add+relu", 1, 128, 28, 28)
LONG = workload(3, "conv2d+add+hard_swish+multiply+add", 1, 32, 9, 9)
SOFTMAX, MEAN = workload(4, "softmax", 1, 10), workload(5, "mean", 1, 960)
AXES = tuple(
    WorkloadDifference(Aspect.EXTENT, "main block", "spatial", i, there, here) for i, there, here in ((2, 128, 64), (3, 28, 56))
)
SHAPES = tuple(WorkloadDifference(Aspect.SHAPE, "", f"argument {i}", 0, "1x128", "1x64") for i in (1, 2, 3))
EPILOGUE = WorkloadDifference(Aspect.EPILOGUE, "epilogue 2", "", 0, None, "Max(b0, 0.0) over 1x32x9x9")


def _task(of: Workload, grade: Grade, trials: int, reason: str, *, weight: int = 1, **rest: Any) -> ExplainedTask:
    plan = TaskPlan(
        name=f"fused_{of.op}",
        op=of.op,
        workload_key=of.key,
        cluster=of.cluster,
        weight=weight,
        grade=grade,
        prior=PriorSource.REGISTRY,
        trials=trials,
        seconds=0.5 * trials,
        known_ms=1.25 if grade is Grade.EXACT else None,
        note=reason,
    )
    record = record_of(of) if grade is Grade.EXACT else None
    return ExplainedTask(plan, Explanation(of, grade, reason, record, rest.get("closest"), rest.get("left_out", ())))


def make_explained() -> ExplainedPlan:
    """Five tasks: two exact, one with a sibling, one stale, one with nothing."""
    sibling = Closest(Relation.CLUSTER, HALF, record_of(HALF), 0.7, differences=(*AXES, *SHAPES))
    gap = RecordGap("depth", 16, 32, "searched for 16 trials, 32 asked")
    own = Closest(Relation.WORKLOAD, LONG, record_of(LONG, depth=16), 0.0, (gap,), tuple(compare(OLD, NEW)))
    left_out = (
        LeftOut(Cause.DAMAGED, Relation.WORKLOAD, "a trace blob is not JSON", ("aa" * 32,)),
        LeftOut(
            Cause.REFUTED, Relation.CLUSTER, "refuted by run ab12cd34: what it gave was 1.50 times slower", ("bb" * 32,) * 3
        ),
    )
    tasks = (
        _task(SOFTMAX, Grade.EXACT, 0, "published at 1.25 ms, searched for 32 trials, 32 asked", weight=2),
        _task(LONG, Grade.STALE, 8, "tvm 0.26.0 then, 0.27.0 now; searched for 16 trials, 32 asked", closest=own),
        _task(
            CONV,
            Grade.CLUSTER,
            16,
            "no record of this workload; 2 siblings known, nearest at distance 0.7; 3 priors refuted by run ab12cd34",
            weight=3,
            closest=sibling,
            left_out=left_out,
        ),
        _task(MEAN, Grade.COLD, 4, "no record of this workload, a sibling or its main block"),
        _task(workload(6, "mean", 1, 480), Grade.EXACT, 0, "published at 1.25 ms, searched for 8 trials, 8 asked"),
    )
    basis = "0.50 s a trial over 320 trials of ppocr-det v4"
    return ExplainedPlan(Plan("ppocr-det", "v6", "{}", tuple(task.plan for task in tasks), 0.5, basis), tasks)


WORKLOADS = Comparison(Kind.WORKLOADS, HALF.key, CONV.key, (HALF, CONV), workload=(EPILOGUE, *AXES, *SHAPES))
ENVIRONMENTS = Comparison(Kind.ENVIRONMENTS, "12" * 32, "34" * 32, environment=tuple(compare(OLD, NEW)))


@pytest.mark.parametrize(
    ("name", "renderable"),
    [
        ("explained", render_explained(make_explained())),
        ("explained-task", render_explained(make_explained().only(CONV.key[:4]), every_field=True)),
        ("compared-workloads", render_comparison(WORKLOADS)),
        ("compared-environments", render_comparison(ENVIRONMENTS)),
        ("compared-equal", render_comparison(dataclasses.replace(WORKLOADS, workload=()))),
    ],
)
def test_golden(name: str, renderable: RenderableType) -> None:
    assert_golden(name, renderable)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Requests that reach the tuner, which answers with the same five tasks."""
    seen: list[Any] = []

    def answer(request: Any, registry: Registry, *, progress: Any) -> ExplainedPlan:
        seen.append(request)
        return make_explained()

    monkeypatch.setattr("bcd_tuner.explaining.explain_network", answer)
    return seen


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")
    return str(path)


def test_a_network_is_explained_costliest_task_first(invoke: Invoke, asked: list[Any], model: str) -> None:
    result = invoke("explain", "--model", model, "--trials", "8")
    assert result.exit_code == 0
    assert asked[0].spec.trials == 8
    titles = [line.split()[0] for line in result.stdout.splitlines() if " call" in line]
    assert titles == [CONV.op, LONG.op, MEAN.op]
    assert "2 exact tasks: reused as they are, 3.75 ms in all" in result.stdout
    found = json.loads(invoke("explain", "--model", model, "--json").stdout)
    assert (found["schema"], found["network"], len(found["tasks"])) == (1, "ppocr-det", 5)
    task = next(t for t in found["tasks"] if t["workload_key"] == CONV.key)
    assert (task["grade"], task["trials"], task["seconds"]) == ("cluster", 16, 8.0)
    assert task["closest"]["relation"] == "cluster"
    assert [d["field"] for d in task["closest"]["differences"]] == ["extent", "extent", "shape", "shape", "shape"]
    assert [(item["cause"], len(item["records"])) for item in task["left_out"]] == [("damaged", 1), ("refuted", 3)]


@pytest.mark.parametrize("task", ["fused_mean", MEAN.key[:3]])
def test_one_task_by_its_name_or_its_key(invoke: Invoke, asked: list[Any], model: str, task: str) -> None:
    found = json.loads(invoke("explain", "--model", model, "--task", task, "--json").stdout)
    assert MEAN.key in [t["workload_key"] for t in found["tasks"]]
    assert len(found["tasks"]) <= 2
    shown = invoke("explain", "--model", model, "--task", task).stdout
    assert "no record of this workload, a sibling or its main block" in shown
    assert CONV.op not in shown


def test_an_unknown_task_offers_the_nearest(invoke: Invoke, asked: list[Any], model: str) -> None:
    result = invoke("explain", "--model", model, "--task", "fused_softmx")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no task of ppocr-det is called 'fused_softmx'" in result.stderr
    assert "did you mean 'fused_softmax'" in result.stderr
    assert "hint: `explain --json`" in invoke("explain", "--model", model, "--task", "zzz").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "not said what to explain"),
        (["ab", "cd", "--model", "v1"], "not both"),
        (["ab"], "1 given, and two are compared"),
        (["ab", "cd", "ef"], "3 given"),
        (["ab", "cd", "--task", "conv"], "need a --model"),
        (["ab", "cd", "--trials", "8"], "need a --model"),
        (["ab", "xyz"], "'xyz' is not how a key or an id begins"),
        (["--model", "v9"], "no network 'v9'"),
    ],
)
def test_mistakes_are_one_line(invoke: Invoke, arguments: list[str], message: str) -> None:
    result = invoke("explain", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line


@pytest.fixture
def pair(home: Path) -> tuple[TuningRecord, TuningRecord]:
    """Two records of two workloads in two environments."""
    with open_registry(load_settings(home=home)) as registry:
        first = fill_registry(registry)
        registry.put_workloads([HALF])
        environment = registry.put_environment(NEW)
        second = dataclasses.replace(first, workload_key=HALF.key, environment_key=environment, state=RecordState.CHECKED)
        registry.publish([second])
    return first, second


@pytest.mark.parametrize(
    ("kind", "field", "abouts"),
    [
        ("workloads", "workload_key", {"workload"}),
        ("environments", "environment_key", {"environment"}),
        ("records", "id", {"workload", "environment"}),
    ],
)
def test_two_things_are_compared_by_how_their_ids_begin(
    invoke: Invoke, pair: tuple[TuningRecord, TuningRecord], kind: str, field: str, abouts: set[str]
) -> None:
    ids = [getattr(record, field) for record in pair]
    result = invoke("explain", *(id_[:12] for id_ in ids), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["schema"], found["kind"], found["there"], found["here"]) == (1, kind, *ids)
    assert {d["about"] for d in found["differences"]} == abouts
    assert all(d["text"] for d in found["differences"])
    shown = invoke("explain", *(id_[:12] for id_ in ids))
    assert shown.stdout.startswith(f"{kind}: A is {ids[0][:12]}, B is {ids[1][:12]}\n")
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "nothing differs" in invoke("explain", ids[0], ids[0]).stdout


def test_what_is_not_there_or_not_of_one_kind(invoke: Invoke, pair: tuple[TuningRecord, TuningRecord]) -> None:
    first, second = pair
    absent = invoke("explain", first.id, "0123456789")
    assert (absent.exit_code, absent.stdout) == (4, "")
    assert "begins with 0123456789" in absent.stderr
    mixed = invoke("explain", first.id, second.workload_key)
    assert (mixed.exit_code, mixed.stdout) == (4, "")
    assert "not of one kind" in mixed.stderr


def test_help_has_an_example_that_fits() -> None:
    result = CliRunner().invoke(app, ["explain", "--help"])
    assert result.exit_code == 0
    assert "Example:\n    bcd-registry explain" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
