"""`import` and `export`: one line and a documented exit code for whatever comes in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.bundle import pack_bundle
from bcd_registry.exchange import TakenIn
from bcd_registry.model import RecordState
from bcd_registry.settings import load_settings, open_registry
from bcd_tuner.exports import ExportReport
from bcd_tuner.imports import ImportReport
from bcd_tuner.interchange import BadLine
from tests.cli.conftest import Invoke
from tests.registry.test_bundle import BUNDLE, DAMAGED

CONFIG = """
[networks.v1]
source = "net.onnx"
name = "ocr"
version = "v1"
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "ocr-v1.bcd"
    path.write_bytes(pack_bundle(BUNDLE))
    return path


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workloads of these tests have descriptions of nothing."""
    monkeypatch.setattr("bcd_tuner.imports.contradiction", lambda workload: "")


def lines_of(text: str) -> list[str]:
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def states(home: Path) -> list[RecordState]:
    with open_registry(load_settings(home=home)) as registry:
        return sorted(record.state for record in registry.list_records(limit=100))


def refused(result: Any, exit_code: int, message: str) -> None:
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("[")]
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert len(lines) <= 2


def test_a_bundle_comes_in_as_priors_and_once(invoke: Invoke, home: Path, bundle: Path, believed: None) -> None:
    shown = invoke("import", str(bundle))
    assert shown.exit_code == 0, shown.output
    assert lines_of(shown.stdout)[0] == "imported"
    assert "2 records: tune begins with them" in shown.stdout
    assert set(states(home)) == {RecordState.MEASURED}
    again = invoke("import", str(bundle), "--json")
    found = json.loads(again.stdout)
    assert (found["schema"], found["changed"], found["known"], found["priors"]) == (1, False, 2, 0)
    assert lines_of(invoke("import", str(bundle)).stdout)[0] == "nothing new: the registry is as it was"


def test_a_bundle_is_believed_only_when_it_is_said(invoke: Invoke, home: Path, bundle: Path, believed: None) -> None:
    shown = invoke("import", str(bundle), "--trust")
    assert shown.exit_code == 0, shown.output
    assert "2 records, as the bundle says: nothing was measured here" in shown.stdout
    assert states(home).count(RecordState.PUBLISHED) == 2


def test_what_went_in_goes_out_again(invoke: Invoke, tmp_path: Path, bundle: Path, believed: None) -> None:
    invoke("import", str(bundle), "--trust")
    out = tmp_path / "out.bcd"
    shown = invoke("export", "--model", "ocr:v1", "--bundle", str(out))
    assert shown.exit_code == 0, shown.output
    assert "2 published records" in shown.stdout
    again = tmp_path / "again.bcd"
    found = json.loads(invoke("export", "--model", "ocr", "--bundle", str(again), "--json").stdout)
    assert (found["records"], found["tasks"], found["bytes"]) == (2, 2, out.stat().st_size)
    assert again.read_bytes() == out.read_bytes()
    refused(invoke("export", "--model", "ocr", "--bundle", str(out)), 2, "is there already")


SOME = (
    "empty",
    "half",
    "absolute name",
    "name out of the folder",
    "huge member",
    "other bytes",
    "next format",
    "trace of another",
)


@pytest.mark.parametrize("name", SOME)
def test_a_damaged_bundle_leaves_the_registry_as_it_is(name: str, invoke: Invoke, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.bcd"
    path.write_bytes(DAMAGED[name][0])
    refused(invoke("import", str(path)), 4, "the bundle cannot be used: ")
    assert states(home) == []


def test_a_workload_that_is_described_wrongly(invoke: Invoke, home: Path, bundle: Path) -> None:
    refused(invoke("import", str(bundle)), 4, "its description is of no workload")
    assert states(home) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is neither a folder nor a file"),
        (["/dev/null"], "/dev/null is neither a folder nor a file"),
        (["x" * 300], "cannot be read: File name too long"),
        (["folder"], "is no JSONDatabase: there is no file database_workload.json"),
        (["folder", "--trust"], "are for bundles"),
        (["folder", "--model", "v1"], "are for bundles"),
        (["ocr-v1.bcd", "--trust", "--remeasure"], "exclude each other"),
        (["ocr-v1.bcd", "--model", "v1"], "say what is measured"),
        (["ocr-v1.bcd", "--remeasure"], "needs the network 'ocr' itself"),
    ],
)
def test_wrong_options_are_usage_errors(
    arguments: list[str], message: str, invoke: Invoke, home: Path, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    refused(invoke("import", *arguments), 2, message)
    assert states(home) == []


def test_a_registry_that_is_only_read_takes_nothing_and_looks_at_nothing(invoke: Invoke) -> None:
    refused(invoke("import", "nowhere", options=["--read-only"]), 9, "read-only")


def test_a_registry_that_is_off_takes_nothing(invoke: Invoke, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_REGISTRY", "off")
    refused(invoke("import", str(bundle)), 2, "switched off")


Run = Callable[..., ImportReport]


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The compiler's half is not called; what it was asked for."""
    asked: list[dict[str, Any]] = []

    def report(*arguments: Any, **options: Any) -> ImportReport:
        asked.append({"arguments": arguments, **options})
        bad = tuple(BadLine("database_tuning_record.json", i, "it is not JSON") for i in range(1, 13))
        taken = TakenIn(n_published=3, n_priors=5, n_known=2, n_refused=1, notes=("ocr:v1 is known here",))
        return ImportReport(taken, 20, 4, 6, bad, remeasured=True, n_slower=2, n_wrong=1)

    monkeypatch.setattr("bcd_tuner.imports.import_database", report)
    monkeypatch.setattr("bcd_tuner.imports.import_bundle", report)
    return asked


def test_everything_of_a_report_fits_a_terminal(invoke: Invoke, tmp_path: Path, replaced: list[dict[str, Any]]) -> None:
    (tmp_path / "logs").mkdir()
    shown = invoke("import", "logs", "--remeasure").stdout
    lines = lines_of(shown)
    assert replaced[0]["measure"] is True
    for part in ("imported", "3 records, checked and measured here", "12 lines cannot be used", "and 2 more", "is known here"):
        assert part in shown
    assert "  database_tuning_record.json:1: it is not JSON" in lines
    found = json.loads(invoke("import", "logs", "--json").stdout)
    assert (found["source"], found["n_bad"], len(found["bad"]), found["wrong"]) == ("logs", 12, 10, 1)


def test_the_network_of_a_bundle_is_found_by_its_name(
    invoke: Invoke, tmp_path: Path, bundle: Path, replaced: list[dict[str, Any]]
) -> None:
    (tmp_path / "net.onnx").write_bytes(b"")
    (tmp_path / "bcd-registry.toml").write_text(CONFIG, encoding="utf-8")
    assert invoke("import", str(bundle), "--remeasure", "--target", "x86-64-v2").exit_code == 0
    assert (replaced[0]["spec"].label, replaced[0]["spec"].target, replaced[0]["trust"]) == ("v1", "x86-64-v2", False)


def test_an_export_says_what_has_no_record(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tuple((f"op{i}", "no record of this workload, a sibling or its main block") for i in range(13))
    report = ExportReport(20, 6, 1, (*missing, missing[0]))
    monkeypatch.setattr("bcd_tuner.exports.export_database", lambda *_: report)
    (tmp_path / "net.onnx").write_bytes(b"")
    shown = invoke("export", "--model", "net.onnx", "out")
    assert shown.exit_code == 0, shown.output
    lines_of(shown.stdout)
    for part in ("6 schedules of 20 tasks", "1 task whose best", "no record", "14 tasks", "(2 tasks)", "and 3 more"):
        assert part in shown.stdout
    found = json.loads(invoke("export", "--model", "net.onnx", "out", "--json").stdout)
    assert (found["schema"], found["schedules"], len(found["missing"])) == (1, 6, 14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "net"], "not said where to"),
        (["--model", "net", "out", "--bundle", "x.bcd"], "not said where to"),
        (["--model", "net", "--bundle", "x.bcd", "--target", "native"], "don't change it"),
        (["--model", "net", "--bundle", "x.bcd"], "no network is called 'net'"),
        (["--model", "net", "out"], "net"),
    ],
)
def test_wrong_options_of_an_export(arguments: list[str], message: str, invoke: Invoke) -> None:
    refused(invoke("export", *arguments), 2, message)


@pytest.mark.parametrize("command", ["import", "export"])
def test_help_shows_an_example(command: str, invoke: Invoke) -> None:
    shown = invoke(command, "--help").stdout
    assert f"bcd-registry {command} " in shown
    lines_of(shown)
