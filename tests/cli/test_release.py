"""`lock`, `diff`, `compile`, `bench`, `gate` and `--frozen` as whole commands: results, exit codes, and what is left alone."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bcd_cli.gate import parse_percent
from bcd_cli.main import EXIT_CODES, app
from bcd_registry.errors import ConfigError, NotFound
from bcd_registry.frozen import load_lock
from bcd_registry.model import NetworkSpec, RecordState
from bcd_registry.registry import Registry
from bcd_registry.settings import load_settings, open_registry, resolve_network
from bcd_tuner.gate import Baseline
from bcd_tuner.shipping import compile_to
from tests.tuner.published_networks import publish_by_hand, quiet, write_network

COMMANDS = (["compile"], ["bench"], ["lock"], ["diff"], ["gate"])
CONFIG = """
[networks.v1]
name = "tiny"
version = "v1"
source = "v1.onnx"

[networks.v2]
name = "tiny"
version = "v2"
source = "v2.onnx"

[networks.v0]
name = "tiny"
version = "v0"
source = "v0.onnx"
"""

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three networks, v2 by far the largest; v1 and v2 have a published schedule for each task, and v1 is compiled."""
    folder = tmp_path_factory.mktemp("released")
    (folder / "bcd-registry.toml").write_text(CONFIG)
    for name, size in (("v1", 12), ("v2", 64), ("v0", 10)):
        write_network(folder / f"{name}.onnx", size=size)
    settings = load_settings(home=folder / "home", config=folder / "bcd-registry.toml")
    with open_registry(settings) as registry:
        for name in ("v1", "v2"):
            publish_by_hand(resolve_network(settings, name), registry)
        compile_to(folder / "v1-out", resolve_network(settings, "v1"), registry, quiet)
    return folder


@pytest.fixture
def place(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the current folder."""
    folder = Path(shutil.copytree(released, tmp_path / "place"))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return folder


@pytest.fixture
def run(place: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["--home", str(place / "home"), *arguments])

    return invoke


@pytest.fixture
def registry(place: Path) -> Iterator[Registry]:
    with open_registry(load_settings(home=place / "home")) as opened:
        yield opened


@pytest.fixture
def locked(run: Run, place: Path) -> Path:
    assert run("lock", "--model", "v1").exit_code == 0
    return place / "bcd.lock"


def refused(result: Result, code: int) -> str:
    """The one line of an error that has a hint and leaves standard output empty."""
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert code in EXIT_CODES
    assert "Traceback" not in result.stderr
    problem, hint = result.stderr.splitlines()[-2:]
    assert (problem.partition(" ")[0], hint.partition(" ")[0]) == ("error:", "hint:")
    return problem


def listed(result: Result) -> list[str]:
    return [line.strip() for line in result.stderr.splitlines() if line.startswith("  ")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_that_fits(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert f"Example:\n    bcd-registry {' '.join(command)}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_same_state_gives_the_same_lock(run: Run, locked: Path) -> None:
    first = locked.read_bytes()
    assert run("networks", "list").exit_code == 0
    result = run("lock", "--model", "v1", "--json")
    assert result.exit_code == 0
    assert locked.read_bytes() == first
    found = json.loads(result.stdout)
    assert (found["file"], found["format"], found["coverage"]["of_tasks"]) == ("bcd.lock", 1, 1.0)
    assert len(found["tasks"]) == found["coverage"]["tasks"]
    assert [path.name for path in locked.parent.glob(".*")] == []


def test_a_lock_for_people(run: Run, place: Path) -> None:
    result = run("lock", "--model", "v1", "-o", "v1.lock")
    assert result.stdout.startswith("v1.lock: tiny v1, ")
    assert "100.0% of the untuned time" in result.stdout
    untuned = run("lock", "--model", "v0", "-o", "v0.lock")
    assert untuned.exit_code == 0
    assert "stays untuned" in untuned.stdout
    assert max(map(len, untuned.stdout.splitlines())) <= 80


def test_a_lock_is_written_over_no_other_file(run: Run, place: Path) -> None:
    before = (place / "v1.onnx").read_bytes()
    assert "not a lock" in refused(run("lock", "--model", "v1", "-o", "v1.onnx"), 2)
    assert (place / "v1.onnx").read_bytes() == before
    assert "is a folder" in refused(run("lock", "--model", "v1", "-o", "home"), 2)
    assert "cannot write" in refused(run("lock", "--model", "v1", "-o", "nowhere/bcd.lock"), 2)


def test_a_damaged_lock_may_be_written_again(run: Run, locked: Path) -> None:
    whole = locked.read_bytes()
    locked.write_bytes(whole.replace(b"weight = 1", b"weight = 9"))
    assert run("lock", "--model", "v1").exit_code == 0
    assert locked.read_bytes() == whole


def test_diff(run: Run, place: Path, locked: Path) -> None:
    assert run("lock", "--model", "v2", "-o", "v2.lock").exit_code == 0
    result = run("diff", "bcd.lock", "v2.lock")
    assert result.exit_code == 0
    assert "tiny v1 -> tiny v2" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    found = json.loads(run("diff", "bcd.lock", "v2.lock", "--json").stdout)
    assert found["network"] == ["version", "digest", "shapes"]
    assert found["added"]
    assert found["removed"]
    same = json.loads(run("diff", "bcd.lock", "bcd.lock", "--json").stdout)
    assert same["n_same"] == len(load_lock(locked).tasks)
    assert "cannot read" in refused(run("diff", "bcd.lock", "none.lock"), 2)


@pytest.mark.slow
def test_frozen_compiles_and_tunes_with_exactly_what_is_locked(run: Run, place: Path, locked: Path) -> None:
    result = run("compile", "--model", "v1", "-o", "out", "--frozen", "bcd.lock", "--json")
    assert result.exit_code == 0, result.stderr
    records = {task.record for task in load_lock(locked).tasks}
    found = json.loads(result.stdout)
    assert {schedule["record"] for schedule in found["schedules"]} == records
    assert found["folder"] == "out"

    tuned = run("tune", "--model", "v1", "--frozen", "bcd.lock", "--json")
    assert tuned.exit_code == 0, tuned.stderr
    report = json.loads(tuned.stdout)
    assert (report["trials"], report["checked"]) == (0, True)
    assert {task["grade"] for task in report["tasks"]} == {"exact"}


@pytest.mark.slow
def test_frozen_does_no_trial_even_for_what_the_lock_leaves_untuned(run: Run, place: Path) -> None:
    assert run("lock", "--model", "v0", "-o", "v0.lock").exit_code == 0
    tuned = run("tune", "--model", "v0", "--frozen", "v0.lock", "--json")
    assert tuned.exit_code == 0, tuned.stderr
    assert json.loads(tuned.stdout)["trials"] == 0


@pytest.mark.parametrize("command", [["tune"], ["compile", "-o", "out"]], ids=lambda command: command[0])
def test_a_removed_record_is_listed(run: Run, registry: Registry, place: Path, locked: Path, command: list[str]) -> None:
    gone = [task for task in load_lock(locked).tasks if task.record]
    registry.remove_records([task.record for task in gone if task.record])
    result = run(*command, "--model", "v1", "--frozen", "bcd.lock", "--json")
    assert f"{len(gone)} problem" in refused(result, 7)
    assert [line.partition(":")[0] for line in listed(result)] == [f"{task.op} {task.workload[:12]}" for task in gone]
    assert not (place / "out").exists()


def test_a_damaged_blob_is_listed_and_the_registry_left_alone(run: Run, registry: Registry, place: Path, locked: Path) -> None:
    task = next(task for task in load_lock(locked).tasks if task.record)
    assert task.record is not None
    [blob] = (place / "home" / "blobs").rglob(registry.trace_digest(task.record))
    blob.write_bytes(b"damaged")
    result = run("compile", "--model", "v1", "-o", "out", "--frozen", "bcd.lock")
    refused(result, 7)
    assert [task.op in line for line in listed(result)] == [True]
    assert not (place / "out").exists()
    assert {r.state for r in registry.list_records()} == {RecordState.PUBLISHED}


def test_locks_that_fit_nothing_here(run: Run, place: Path, locked: Path) -> None:
    whole = locked.read_text()
    (place / "edited.lock").write_text(whole.replace("weight = 1", "weight = 2"))
    (place / "newer.lock").write_text(whole.replace("format = 1", "format = 2"))
    (place / "none.lock").write_text("[networks]\n")
    for name, code, words in (
        ("edited.lock", 7, "was edited or damaged"),
        ("newer.lock", 2, "has the format 2"),
        ("none.lock", 2, "is not a lock"),
        ("missing.lock", 2, "cannot read"),
    ):
        assert words in refused(run("compile", "--model", "v1", "-o", "out", "--frozen", name), code)
        assert words in refused(run("tune", "--model", "v1", "--frozen", name), code)
    assert "the lock is of tiny v1, this is tiny v2" in refused(
        run("compile", "--model", "v2", "-o", "out", "--frozen", "bcd.lock"), 7
    )
    assert not (place / "out").exists()


@pytest.mark.parametrize("option", [["--fresh"], ["--trials", "4"], ["--time-budget", "5s"]])
def test_frozen_and_a_search_contradict_each_other(run: Run, locked: Path, option: list[str]) -> None:
    assert "--frozen does no trial" in refused(run("tune", "--model", "v1", "--frozen", "bcd.lock", *option), 2)


@pytest.mark.slow
def test_compile_and_bench(run: Run, place: Path) -> None:
    result = run("compile", "--model", "v1", "-o", "out")
    assert result.exit_code == 0, result.stderr
    assert "verified: its outputs equal the untuned network's" in result.stdout
    unbroken = ("written:", "try it:")
    assert max(len(line) for line in result.stdout.splitlines() if not line.startswith(unbroken)) <= 80
    assert "loading" in run("bench", "--compiled", "out", "--repeats", "5").stderr
    found = json.loads(run("bench", "--model", "v1", "--compiled", "out", "--repeats", "5", "--json").stdout)
    assert {"tuned", "untuned"} <= set(found["latency_ms"])
    assert found["latency_ms"]["tuned"]["runs"] == 5
    assert set(json.loads(run("bench", "--model", "v1", "--alone", "--json").stdout)["latency_ms"]) == {"tuned"}
    shown = run("bench", "--model", "v1", "--repeats", "5").stdout
    assert "measured end to end" in shown
    assert "thread" in shown
    assert "what to time" in refused(run("bench"), 2)


def test_compile_says_what_stays_untuned(run: Run, place: Path) -> None:
    result = run("compile", "--model", "v0", "-o", "out")
    assert result.exit_code == 0
    assert "untuned task" in result.stdout
    assert "nothing is published" in result.stdout


def test_compiled_folders_that_must_not_run(run: Run, place: Path) -> None:
    path = place / "v1-out" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "isa": [*manifest["isa"], "avx1024"]}))
    assert "this CPU lacks avx1024" in refused(run("bench", "--compiled", "v1-out"), 2)
    path.write_text(json.dumps({**manifest, "format": 2}))
    assert "format 2" in refused(run("bench", "--compiled", "v1-out"), 2)
    path.write_text(json.dumps(manifest))
    with (place / "v1-out" / "network.so").open("ab") as file:
        file.write(b"\0")
    assert "is not the file that was compiled" in refused(run("bench", "--compiled", "v1-out"), 7)
    assert "is not a compiled network" in refused(run("bench", "--compiled", "home"), 2)


def test_compile_refuses_a_folder_of_something_else_before_it_reads_the_network(run: Run, place: Path) -> None:
    result = run("compile", "--model", "v1", "-o", "home")
    assert "is not empty" in refused(result, 2)
    assert "reading" not in result.stderr


@pytest.mark.slow
def test_a_gate_that_says_no(run: Run, place: Path) -> None:
    files = ["--junit", "gate.xml", "--summary", "summary.md"]
    (place / "summary.md").write_text("before\n")
    result = run("gate", "--model", "v2", "--against", "v1", "--max-untuned", "2", "--repeats", "9", *files)
    assert result.exit_code == 6, result.stderr
    assert "FAILED regression: slower: " in result.stdout
    assert "ok     coverage: 100.00% of the estimated untuned time" in " ".join(result.stdout.split("\n"))
    assert "NOT PASSED" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    suite = ET.parse(place / "gate.xml").getroot()[0]  # noqa: S314 - written by the command
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert {case.get("name"): case.find("failure") is not None for case in suite} == {
        "regression": True,
        "coverage": False,
        "untuned": False,
    }
    summary = (place / "summary.md").read_text()
    assert summary.startswith("before\n## tiny v2 against v1: not passed\n")


def test_a_gate_that_says_yes_where_github_collects_summaries(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "step.md"))
    result = run("gate", "--model", "v1", "--against", "v2", "--repeats", "9", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["passed"] is True
    assert [rule["name"] for rule in found["rules"]] == ["regression", "coverage"]
    assert found["ratio"]["low"] <= found["ratio"]["value"] <= found["ratio"]["high"] < 1
    assert "against v2: passed" in (place / "step.md").read_text()


def test_a_gate_for_what_is_not_tuned(run: Run) -> None:
    result = run(
        "gate", "--model", "v0", "--against", "v1", "--max-regression", "100%", "--max-untuned", "0", "--repeats", "9", "--json"
    )
    assert result.exit_code == 6
    failed = [rule["name"] for rule in json.loads(result.stdout)["rules"] if not rule["passed"]]
    assert failed[-2:] == ["coverage", "untuned"]


def test_a_gate_against_a_lock_and_a_folder(run: Run, place: Path, locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Baseline] = []

    def note(spec: NetworkSpec, baseline: Baseline, *_: object, **__: object) -> None:
        asked.append(baseline)
        raise NotFound("not measured", hint="this is a test")

    monkeypatch.setattr("bcd_tuner.gate.run_gate", note)
    for against in ("bcd.lock", "v1-out", "v1"):
        refused(run("gate", "--model", "v2", "--against", against), 4)
    by_lock, by_folder, by_name = asked
    assert (by_lock.lock, by_lock.spec and by_lock.spec.version) == (load_lock(locked), "v1")
    assert (by_folder.folder, by_folder.spec) == (Path("v1-out"), None)
    assert (by_name.spec and by_name.spec.label, by_name.lock) == ("v1", None)


@pytest.mark.parametrize(
    ("against", "code", "words"),
    [
        ("v9", 2, "no network 'v9'"),
        ("v0", 4, "nothing to compare with"),
        ("home", 2, "is not a compiled network"),
        ("bcd-registry.toml", 2, "is not a lock"),
    ],
)
def test_a_gate_with_nothing_to_compare(run: Run, place: Path, against: str, code: int, words: str) -> None:
    assert words in refused(run("gate", "--model", "v1", "--against", against, "--junit", "gate.xml"), code)
    assert not (place / "gate.xml").exists()


def test_a_lock_of_a_network_that_is_not_in_the_file(run: Run, place: Path, locked: Path) -> None:
    config = (place / "bcd-registry.toml").read_text().replace('version = "v1"', 'version = "v7"')
    (place / "bcd-registry.toml").write_text(config)
    assert "tiny v1, which no network here is" in refused(run("gate", "--model", "v2", "--against", "bcd.lock"), 2)


@pytest.mark.parametrize(("text", "share"), [("3%", 0.03), (" 0.5 % ", 0.005), ("100%", 1.0), ("0%", 0.0)])
def test_percentages(text: str, share: float) -> None:
    assert parse_percent(text, "--x") == pytest.approx(share)


@pytest.mark.parametrize("text", ["3", "0.03", "-3%", "101%", "", "%", "nan%", "1e1%"])
def test_what_is_no_percentage(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-regression"):
        parse_percent(text, "--max-regression")
