"""`gc`, `stats`, `pin`, `unpin`, `networks delete` and `publish`."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bcd_cli.main import app
from bcd_cli.rendering.text import size
from bcd_registry.housekeeping import GRACE_S, KEEP
from bcd_registry.model import RecordState, TuningRecord
from bcd_registry.settings import load_settings, open_registry
from bcd_registry.spool import Results, open_spool
from tests.cli.conftest import Invoke
from tests.cli.values import fill_registry, make_report

COMMANDS = (["gc"], ["stats"], ["pin"], ["unpin"], ["networks", "delete"], ["publish"])


@pytest.fixture
def record(home: Path) -> TuningRecord:
    """The published record of a filled registry."""
    with open_registry(load_settings(home=home)) as registry:
        return fill_registry(registry)


def add_records(home: Path, record: TuningRecord, n: int) -> list[str]:
    """Slower ones of the same workload, each with a trace of its own; returns their ids."""
    new = [
        dataclasses.replace(
            record,
            trace=[["SampleCategorical", i]],
            decisions=(("SampleCategorical", i),),
            run_times_s=(1.0 + i,),
            state=RecordState.MEASURED,
        )
        for i in range(n)
    ]
    with open_registry(load_settings(home=home)) as registry:
        registry.keep(new)
    return [r.id for r in new]


def age_blobs(home: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    for path in (home / "blobs").rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def ids(home: Path) -> set[str]:
    with open_registry(load_settings(home=home)) as registry:
        return {record.id for record in registry.list_records(limit=1000)}


def lines_of(text: str) -> list[str]:
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def test_gc_says_what_can_go_and_removes_nothing(invoke: Invoke, home: Path, record: TuningRecord) -> None:
    assert invoke("gc").stdout == "nothing to remove\n"
    added = add_records(home, record, 12)
    age_blobs(home, hours=25)
    shown = invoke("gc").stdout
    lines = lines_of(shown)
    assert lines[0] == "can go"
    assert "beaten by 8 better ones" in shown
    assert lines[-1].strip() == "bcd-registry gc --keep 8 --grace 24h --yes"
    found = json.loads(invoke("gc", "--json").stdout)
    assert (found["schema"], found["removed"], found["keep"], found["grace_s"]) == (1, False, KEEP, GRACE_S)
    assert set(found["records"]) == set(added[7:])
    assert found["trace_bytes"] > 0
    assert ids(home) == {record.id, *added}


def test_gc_removes_what_it_said(invoke: Invoke, home: Path, record: TuningRecord) -> None:
    added = add_records(home, record, 12)
    age_blobs(home, hours=25)
    planned = json.loads(invoke("gc", "--keep", "3", "--json").stdout)
    done = json.loads(invoke("gc", "--keep", "3", "--yes", "--json").stdout)
    assert done["removed"] is True
    assert set(done["records"]) == set(planned["records"]) == set(added[2:])
    assert (len(done["blobs"]), done["blob_bytes"]) == (10, planned["trace_bytes"])
    assert ids(home) == {record.id, *added[:2]}
    assert invoke("gc", "--keep", "3", "--yes").stdout == "nothing to remove\n"


def test_gc_leaves_what_is_young(invoke: Invoke, home: Path, record: TuningRecord) -> None:
    add_records(home, record, 12)
    shown = invoke("gc", "--yes").stdout
    assert lines_of(shown)[0] == "removed"
    assert "5 blobs named by nothing, not that old yet" in shown
    assert invoke("gc").stdout == "nothing to remove; 5 blobs without a name not old enough yet\n"
    age_blobs(home, hours=3)
    assert json.loads(invoke("gc", "--grace", "2h", "--yes", "--json").stdout)["waiting"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--grace", "soon"], "--grace 'soon'"), (["--grace", "10m"], "too short"), (["--keep", "0"], "--keep")],
)
def test_gc_refuses_what_is_not_safe(invoke: Invoke, record: TuningRecord, options: list[str], message: str) -> None:
    result = invoke("gc", "--yes", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_pinned_version_keeps_its_records_and_itself(invoke: Invoke, home: Path, record: TuningRecord) -> None:
    added = add_records(home, record, 12)
    assert invoke("pin", "net", "v1").stdout == "net:v1 is pinned: gc leaves its records alone\n"
    assert invoke("gc", "--keep", "1", "--yes").stdout == "nothing to remove\n"
    assert "pinned" in invoke("networks", "list").stdout
    assert json.loads(invoke("networks", "list", "--json").stdout)["tuned"][0]["pinned"] is True

    refused = invoke("networks", "delete", "net", "v1")
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert len([line for line in refused.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert "pinned" in refused.stderr

    assert invoke("unpin", "net:v1").stdout == "net:v1 is not pinned any more\n"
    assert invoke("unpin", "net").stdout == "net:v1 was not pinned\n"
    assert "pinned" not in invoke("networks", "list").stdout
    invoke("gc", "--keep", "1", "--yes")
    assert ids(home) == {record.id}
    assert added


def test_a_version_is_forgotten_and_its_records_stay(invoke: Invoke, home: Path, record: TuningRecord) -> None:
    assert invoke("networks", "delete", "net", "v1").stdout == "net:v1 is forgotten; its records are still served\n"
    assert json.loads(invoke("networks", "list", "--json").stdout)["tuned"] == []
    assert ids(home) == {record.id}


@pytest.mark.parametrize("command", [["pin"], ["unpin"], ["networks", "delete"]])
@pytest.mark.parametrize(("name", "code"), [(["nte"], 2), (["net", "v9"], 4)])
def test_versions_that_are_not_there(
    invoke: Invoke, record: TuningRecord, command: list[str], name: list[str], code: int
) -> None:
    result = invoke(*command, *name)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ")


def test_stats(invoke: Invoke, home: Path, record: TuningRecord) -> None:
    add_records(home, record, 2)
    report = json.loads(json.dumps(make_report().as_json()))
    with open_registry(load_settings(home=home)) as registry:
        (run,) = registry.list_runs()
        registry.put_run(dataclasses.replace(run, id="run-2", report=report))
    found = json.loads(invoke("stats", "--json").stdout)
    assert found["schema"] == 1
    assert (found["rows"]["published"], found["rows"]["measured"], found["rows"]["runs"]) == (1, 2, 2)
    assert found["blobs"]["count"] == 3
    assert found["tasks"]["by_grade"] == {"exact": 3, "cluster": 2, "anchor": 1, "cold": 3}
    assert sum(found["tasks"]["not_exact_by_cause"].values()) == 6
    assert found["saved"] == {"estimated": True, "trials": 112, "seconds": 52.5, "runs_without_estimate": 1}
    assert found["runs"] == {"read": 2, "trials": 64, "tuning_s": 32.0}

    shown = invoke("stats").stdout
    lines = lines_of(shown)
    assert "1 published, 0 checked, 2 measured, 0 quarantined" in lines[0]
    assert "saved (estimated): 112 trials, about 52.5 s; 1 run had no earlier one to go by" in shown
    assert "the newest 1 added up here" in invoke("stats", "--runs", "1").stdout


def test_stats_of_nothing(invoke: Invoke) -> None:
    assert "saved" not in invoke("stats").stdout
    assert json.loads(invoke("stats", "--json").stdout)["blobs"] == {"count": 0, "bytes": 0}


def test_publish_gives_the_registry_what_was_spooled(invoke: Invoke, home: Path, record: TuningRecord) -> None:
    assert invoke("publish", "--spool").stdout == "nothing is spooled\n"
    settings = load_settings(home=home)
    spool = open_spool(settings, "0123456789abcdef")
    assert spool is not None
    kept = dataclasses.replace(record, run_id="0123456789abcdef", state=RecordState.MEASURED)
    spool.write(Results(kept=(kept,)))
    broken = spool.write(Results(kept=(kept, kept)))
    broken.write_bytes(b"{}")
    result = invoke("publish", "--spool")
    assert result.exit_code == 0
    assert lines_of(result.stdout) == ["published 1 file with 1 record of run 01234567", "set aside: 1 file"]
    assert f"warning: {broken}.damaged: set aside: " in result.stderr
    assert ids(home) == {record.id, kept.id}
    found = json.loads(invoke("publish", "--spool", "--json").stdout)
    assert found == {"schema": 1, "runs": [], "files": 0, "records": 0, "set_aside": [], "foreign": []}


def test_publish_leaves_what_is_meant_for_another_registry(invoke: Invoke, home: Path, record: TuningRecord) -> None:
    team = dataclasses.replace(load_settings(home=home), database_url="postgresql+psycopg://me:secret@db.team/bcd")
    spool = open_spool(team, "ab" * 8)
    assert spool is not None
    spool.write(Results(kept=(dataclasses.replace(record, run_id="ab" * 8, state=RecordState.MEASURED),)))
    assert not [path for path in (home / "spool").rglob("*.json") if "secret" in path.read_text()]
    shown = invoke("publish", "--spool").stdout
    assert "another registry" in shown
    assert str(home / "spool" / ("ab" * 8)) in shown
    assert invoke("publish", "--spool", "--all").stdout.startswith("published 1 file")


def test_publish_wants_to_know_what(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke("publish")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "bcd-registry publish --spool" in result.stderr
    monkeypatch.setenv("BCD_REGISTRY", "off")
    result = invoke("publish", "--spool")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "switched off" in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_that_fits(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert f"Example:\n    bcd-registry {' '.join(command)}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1048570, "1.0 MiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3072.0 GiB")],
)
def test_sizes(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text
