"""`check` and `tune --canary`: what they print, mark and exit with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Group
from typer.testing import CliRunner

from bcd_cli.main import app
from bcd_cli.rendering.check import render_check
from bcd_registry.model import EventKind
from bcd_registry.registry import Registry
from bcd_registry.settings import load_settings, open_registry
from bcd_tuner.canary import CanaryRequest
from bcd_tuner.canary_report import CanaryReport, RecordCheck
from bcd_tuner.drift import Machine, RecordVerdict
from bcd_tuner.session import TuneRequest
from tests.cli.conftest import Invoke
from tests.cli.goldens import assert_golden
from tests.cli.values import make_report
from tests.tuner.published import Published, measure_network, planted

RECORD_FIELDS = {
    "name",
    "workload_key",
    "record",
    "verdict",
    "stored_ms",
    "now_ms",
    "factor",
    "interval",
    "confirmed",
    "reason",
}


def make_check(**changes: Any) -> CanaryReport:
    """A check that found one record of each kind."""
    rows = [
        (
            "conv2d+add+hard_swish+multiply+add",
            RecordVerdict.DRIFTED,
            0.8,
            1.9,
            2.25,
            "2.25x as slow as stored (2.01x to 2.52x)",
        ),
        ("conv2d+add+relu", RecordVerdict.STEADY, 0.5, 0.51, 1.02, ""),
        ("conv2d+add+relu", RecordVerdict.FASTER, 0.4, 0.3, 0.75, ""),
        (
            "matmul+add",
            RecordVerdict.FAILED,
            0.3,
            None,
            None,
            "a canary found that it cannot be used: the trace does not replay",
        ),
        ("softmax", RecordVerdict.UNCLEAR, 0.02, 0.025, 1.31, "too noisy to tell"),
        ("reshape", RecordVerdict.UNTUNED, 0.001, 0.001, None, ""),
    ]
    records = tuple(
        RecordCheck(
            name=f"fused_{i}",
            op=op,
            workload_key=f"{i:064x}",
            weight=1 + i,
            record=f"{i:x}{'f9a12bc' * 9}",
            verdict=verdict,
            stored_ms=stored_ms,
            now_ms=now_ms,
            stored_untuned_ms=2.5,
            now_untuned_ms=2.6,
            factor=factor,
            interval=None if factor is None else (0.9 * factor, 1.1 * factor),
            confirmed=verdict is RecordVerdict.DRIFTED,
            reason=reason,
            doubted="1.80x as slow as stored (1.62x to 1.99x)" if verdict is RecordVerdict.FASTER else "",
        )
        for i, (op, verdict, stored_ms, now_ms, factor, reason) in enumerate(rows)
    )
    report = CanaryReport(
        network="ppocr-det",
        version="v6",
        target='{"kind":"llvm"}',
        seed=0,
        n_known=23,
        records=records,
        machine=Machine(1.02, 0.98, 1.06, False, 5),
        marked=True,
        wall_s=12.5,
    )
    return replace(report, **changes)


def test_what_people_see() -> None:
    moved = Machine(2.03, 1.96, 2.11, True, 5, tuned_factor=1.4)
    empty = make_check(machine=None, records=())
    reports = [make_check(), replace(empty, machine=moved, marked=False, notes=("read-only: nothing is marked",)), empty]
    assert_golden("check", Group(*(part for report in reports for part in (render_check(report), ""))))


Checked = Callable[[CanaryReport], list[CanaryRequest]]


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Put a report in the place of the real canary's; the list takes what it was asked."""

    def answer(report: CanaryReport) -> list[CanaryRequest]:
        asked: list[CanaryRequest] = []

        def run(request: CanaryRequest, registry: Registry, *, progress: object) -> CanaryReport:
            asked.append(request)
            return report

        monkeypatch.setattr("bcd_tuner.canary.check_network_records", run)
        return asked

    return answer


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")
    return str(path)


def test_options_reach_the_canary(invoke: Invoke, canary: Checked, model: str) -> None:
    asked = canary(make_check(records=()))
    assert invoke("check", "--model", model).exit_code == 0
    assert invoke("check", "--model", model, "--sample", "3", "--seed", "5", "--target", "x86-64-v3").exit_code == 0
    assert invoke("check", "--model", model, "--all", "--shape", "x=1,3", options=["--read-only"]).exit_code == 0
    first, second, third = asked
    assert (first.sample, first.seed, first.mark) == (8, 0, True)
    assert (second.sample, second.seed, second.spec.target) == (3, 5, "x86-64-v3")
    assert (third.sample, third.mark, third.spec.shapes) == (None, False, {"x": (1, 3)})


def test_what_no_longer_holds_is_exit_code_8(invoke: Invoke, canary: Checked, model: str) -> None:
    canary(make_check())
    result = invoke("check", "--model", model, "--json")
    assert result.exit_code == 8
    found = json.loads(result.stdout)
    assert (found["schema"], found["holds"], found["machine"]["moved"]) == (1, False, False)
    assert set(found["records"][0]) >= RECORD_FIELDS
    assert found["records"][0]["verdict"] == "drifted"
    canary(make_check(records=make_check().records[1:3]))
    assert invoke("check", "--model", model).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--sample", "3", "--all"], 2, "contradict"),
        (["--sample", "0"], 2, "--sample"),
        (["--seed", "-1"], 2, "--seed"),
        (["--target", "pentium9"], 2, "pentium9"),
        ([], 3, "net.onnx"),
    ],
)
def test_what_cannot_be_checked(invoke: Invoke, model: str, arguments: list[str], code: int, said: str) -> None:
    result = invoke("check", "--model", model, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_registry_that_is_switched_off(invoke: Invoke, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_REGISTRY", "off")
    result = invoke("check", "--model", model)
    assert result.exit_code == 2
    assert "BCD_REGISTRY" in result.stderr


def test_a_canary_before_a_tune(invoke: Invoke, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TuneRequest] = []

    def run(request: TuneRequest, registry: Registry, **rest: object) -> Any:
        asked.append(request)
        return make_report()

    monkeypatch.setattr("bcd_tuner.session.tune", run)
    assert invoke("tune", "--model", model, "--canary", "4").exit_code == 0
    assert invoke("tune", "--model", model).exit_code == 0
    assert [request.canary for request in asked] == [4, 0]
    assert invoke("tune", "--model", model, "--canary", "-1").exit_code == 2


def test_help_has_an_example_that_fits() -> None:
    result = CliRunner().invoke(app, ["check", "--help"])
    assert "Example:\n    bcd-registry check" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return measure_network(tmp_path_factory.mktemp("network"), name="net", version="")


@pytest.mark.slow
def test_a_record_drifts_and_holds_again(invoke: Invoke, home: Path, published: Published) -> None:
    drifted, model = published.of_op("conv2d"), published.spec.source
    with open_registry(load_settings(home=home)) as registry:
        published.fill(registry, planted(drifted))

    seen = invoke("check", "--model", model, "--all", options=["--read-only"])
    assert seen.exit_code == 8, seen.stderr
    assert "nothing is marked" in seen.stdout
    assert drift_of(home, drifted.id) == ""

    marked = invoke("check", "--model", model, "--all")
    assert marked.exit_code == 8
    assert "1 drifted" in marked.stdout.splitlines()[1]
    assert drift_of(home, drifted.id) in marked.stdout
    planned = json.loads(invoke("plan", "--model", model, "--json").stdout)
    [stale] = [task for task in planned["tasks"] if task["workload_key"] == drifted.workload_key]
    assert stale["grade"] == "stale"
    assert drift_of(home, drifted.id) in stale["note"]

    with open_registry(load_settings(home=home)) as registry:
        registry.publish([drifted])
    held = invoke("check", "--model", model, "--all", "--json")
    assert held.exit_code == 0, held.stdout
    found = json.loads(held.stdout)
    [again] = [r for r in found["records"] if r["doubted"]]
    assert again["record"] == drifted.id
    if again["verdict"] != "cannot tell":  # on a machine that others use as well
        with open_registry(load_settings(home=home)) as registry:
            assert registry.list_events()[0].kind is EventKind.STEADY
        assert drift_of(home, drifted.id) == ""


@pytest.mark.slow
def test_without_records_there_is_nothing_to_check(invoke: Invoke, published: Published) -> None:
    result = invoke("check", "--model", published.spec.source)
    assert (result.exit_code, result.stdout) == (4, "")
    assert "no published record of net can be used here" in result.stderr


def drift_of(home: Path, record: str) -> str:
    with open_registry(load_settings(home=home)) as registry:
        return registry.get_record(record).drift
