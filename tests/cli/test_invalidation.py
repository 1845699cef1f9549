"""`invalidate`, `restore`, `lineage`, and what `records` says of it."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType
from typer.testing import CliRunner

from bcd_cli.main import app
from bcd_cli.rendering.invalidation import render_recalled, render_restored
from bcd_cli.rendering.lineage import render_lineage
from bcd_cli.rendering.listings import render_record
from bcd_registry.invalidation import Recalled
from bcd_registry.lineage import Lineage
from bcd_registry.model import (
    Environment,
    Event,
    EventKind,
    Grade,
    NetworkVersion,
    RecordState,
    Refutation,
    Task,
    TuningRecord,
    Workload,
)
from bcd_registry.settings import load_settings, open_registry
from tests.cli.conftest import Invoke
from tests.cli.goldens import assert_golden, text_of
from tests.cli.values import fill_registry

SIBLING = Workload("5b" * 32, "cd" * 32, "ef" * 32, (1, 128, 28, 28), 2.3e8, 1e6, "conv2d+relu", "{}", (1, 128, 28, 28))
COUSIN = Workload("77" * 32, "88" * 32, "ef" * 32, (1, 256, 14, 14), 2.3e8, 1e6, "conv2d+add", "{}", (1, 256, 14, 14))
EVENT = Event("5c1e" * 8, EventKind.INVALIDATED, "measured on a throttled machine", {}, ("aa" * 32, "bb" * 32))


@dataclasses.dataclass(frozen=True)
class Family:
    """A published record, what was diffused from it, and what was diffused from that."""

    parent: TuningRecord
    child: TuningRecord
    grandchild: TuningRecord

    @property
    def ids(self) -> list[str]:
        return [self.parent.id, self.child.id, self.grandchild.id]


def lines_of(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(len(line) for line in lines if not line.startswith("  bcd-registry ")) <= 80
    return lines


def family_of(record: TuningRecord) -> Family:
    """Descendants of a record in other workloads, newer than it."""
    child = dataclasses.replace(
        record,
        workload_key=SIBLING.key,
        state=RecordState.CHECKED,
        parent_id=record.id,
        run_id="run-2",
        cost_model_id="9d" * 32,
        created_at=time.time(),
    )
    grandchild = dataclasses.replace(
        child, workload_key=COUSIN.key, state=RecordState.MEASURED, parent_id=child.id, run_id="run-3", cost_model_id=None
    )
    return Family(record, child, grandchild)


@pytest.fixture
def family(home: Path) -> Family:
    """A registry of three generations and two networks."""
    with open_registry(load_settings(home=home)) as registry:
        found = family_of(fill_registry(registry))
        network = NetworkVersion("net", "v2", "net.onnx", "13" * 32, {"x": (1, 3, 28, 28)}, (Task("conv", SIBLING, 1),), 1.8e9)
        registry.register_network(network)
        registry.put_workloads([COUSIN])
        registry.publish([found.child])
        registry.keep([found.grandchild])
    return found


def standing(home: Path) -> dict[str, str]:
    """The event that took each record back, by id; empty for none."""
    with open_registry(load_settings(home=home)) as registry:
        return {record.id: record.invalidated for record in registry.list_records()}


def test_a_dry_run_says_what_would_be_taken_back(invoke: Invoke, home: Path, family: Family) -> None:
    result = invoke("invalidate", "--record", family.parent.id[:8], "--with-descendants")
    assert result.exit_code == 0
    lines = lines_of(result.stdout)
    assert lines[0] == "can be taken back"
    assert "records" in lines[1]
    assert "3 of 3 workloads, 2 published" in lines[1]
    assert "2 of them, diffused from the others" in lines[2]
    assert "net:v1, net:v2" in lines[3]
    assert "2 cold (nothing)" in lines[4]
    assert lines[-2] == "nothing was changed; this does it:"
    found = json.loads(invoke("invalidate", "--record", family.parent.id[:8], "--with-descendants", "--json").stdout)
    assert (found["schema"], found["invalidated"], found["event"]) == (1, False, None)
    assert set(found["records"]) == set(family.ids)
    assert (found["published"], found["descendants"], found["workloads"]) == (2, 2, 3)
    assert found["served_then"] == {"cold": 2}
    assert [n["name"] + n["version"] for n in found["networks"]] == ["netv1", "netv2"]
    assert set(standing(home).values()) == {""}


def test_what_is_served_then(invoke: Invoke, family: Family) -> None:
    shown = invoke("invalidate", "--record", family.parent.id[:8]).stdout
    assert "1 cluster (a prior)" in shown
    assert "net:v1" in shown
    assert "net:v2" not in shown
    assert "published" in shown
    of_grandchild = invoke("invalidate", "--workload", COUSIN.key[:6]).stdout
    assert "served then" not in of_grandchild
    assert "of none that is stored" in of_grandchild


def test_the_command_that_is_shown_does_it_and_restore_undoes_it(invoke: Invoke, home: Path, family: Family) -> None:
    reason = "measured on a 'throttled' machine"
    options = ["--cluster", "cdcd", "--older-than", "1d", "--reason", reason]
    shown = invoke("invalidate", *options).stdout.splitlines()[-1].strip()
    _, *arguments = shlex.split(shown)
    result = invoke(*arguments)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "taken back"
    event_id = next(line.split()[-1] for line in lines if line.startswith("event"))
    assert lines[-1].strip() == f"bcd-registry restore {event_id[:12]}"
    assert standing(home) == {family.parent.id: event_id, family.child.id: "", family.grandchild.id: ""}
    assert "invalidated" in invoke("records", "list").stdout
    assert "1 of them invalidated" in " ".join(invoke("stats").stdout.split())
    assert invoke("invalidate", *options).stdout == "nothing to take back; 1 record taken back before\n"

    shown_record = invoke("records", "show", family.parent.id[:8])
    assert shown_record.exit_code == 0
    assert reason in " ".join(shown_record.stdout.split())
    (event,) = json.loads(invoke("records", "show", family.parent.id[:8], "--json").stdout)["events"]
    assert (event["id"], event["kind"], event["reason"], event["n_records"]) == (event_id, "invalidated", reason, 1)
    assert event["selection"] == {"cluster": "cdcd", "older_than_s": 86400.0}

    restored = invoke("restore", event_id[:6])
    assert (restored.exit_code, restored.stdout) == (0, "1 record restored: restored by hand\n")
    assert set(standing(home).values()) == {""}
    again = invoke("restore", event_id[:6])
    assert (again.exit_code, again.stdout) == (4, "")


def test_records_are_restored_whatever_took_them_back(invoke: Invoke, home: Path, family: Family) -> None:
    assert invoke("invalidate", "--network", "net", "--reason", "old", "--yes").exit_code == 0
    assert [bool(standing(home)[i]) for i in family.ids] == [True, True, False]
    result = invoke("restore", "--record", family.child.id[:10], "--reason", "measured again", "--json")
    found = json.loads(result.stdout)
    assert (found["schema"], found["reason"], found["records"]) == (1, "measured again", [family.child.id])
    assert [bool(standing(home)[i]) for i in family.ids] == [True, False, False]


def test_one_version_of_a_network(invoke: Invoke, family: Family) -> None:
    found = json.loads(invoke("invalidate", "--network", "net:v2", "--json").stdout)
    assert found["records"] == [family.child.id]
    assert found["selection"] == {"network": ["net", "v2"]}
    assert json.loads(invoke("invalidate", "--network", "net", "--json").stdout)["selection"] == {"network": ["net", None]}
    both = json.loads(invoke("invalidate", "--network", "net", "--environment", "0", "--workload", "f", "--json").stdout)
    assert both["records"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["invalidate"], 2, "no records are selected"),
        (["invalidate", "--record", "3f", "--yes"], 2, "--yes needs a --reason"),
        (["invalidate", "--record", "3f", "--yes", "--reason", " "], 2, "--yes needs a --reason"),
        (["invalidate", "--record", ""], 2, "selects everything"),
        (["invalidate", "--older-than", "soon"], 2, "--older-than 'soon' is not a time"),
        (["invalidate", "--network", "nte"], 2, "no tuned network is called 'nte'"),
        (["invalidate", "--network", "net:v9"], 2, "no tuned network is called 'net:v9'"),
        (["restore"], 2, "not said what to restore"),
        (["restore", "ab", "--record", "cd"], 2, "not both"),
        (["restore", "0123456789"], 4, "0123456789"),
        (["restore", "--record", "0123456789"], 4, "no record begins with 0123456789"),
        (["restore", "--record", "xyz"], 2, "'xyz'"),
        (["lineage", "xyz"], 2, "'xyz'"),
        (["lineage", "0123456789"], 4, "no record begins with 0123456789"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(
    invoke: Invoke, home: Path, family: Family, arguments: list[str], code: int, message: str
) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line
    assert set(standing(home).values()) == {""}


def test_a_read_only_registry_shows_and_refuses(invoke: Invoke, home: Path, family: Family) -> None:
    selected = ["invalidate", "--record", family.parent.id[:8]]
    assert invoke(*selected, options=["--read-only"]).exit_code == 0
    assert invoke("lineage", family.parent.id[:8], options=["--read-only"]).exit_code == 0
    result = invoke(*selected, "--reason", "x", "--yes", options=["--read-only"])
    assert (result.exit_code, result.stdout) == (9, "")
    assert set(standing(home).values()) == {""}


def test_a_lineage_has_three_generations(invoke: Invoke, family: Family) -> None:
    result = invoke("lineage", family.child.id[:10])
    assert result.exit_code == 0
    lines = lines_of(result.stdout)
    assert [line.split()[0] for line in lines if line.lstrip()[:2] in ("- ", "> ")] == ["-", ">", "-"]
    assert "ranked by 9d9d9d9d" in " ".join(result.stdout.split())
    assert lines[-1] == "1 ancestor, 1 descendant"
    found = json.loads(invoke("lineage", family.child.id[:10], "--json").stdout)
    assert (found["schema"], found["record"], found["forgotten"]) == (1, family.child.id, None)
    assert [(row["generation"], row["id"]) for row in found["records"]] == list(enumerate(family.ids))
    assert found["records"][1]["cost_model_id"] == "9d" * 32


def test_a_lineage_marks_what_speaks_against_a_record(invoke: Invoke, home: Path, family: Family) -> None:
    with open_registry(load_settings(home=home)) as registry:
        environment = family.parent.environment_key
        registry.refute(
            [Refutation(family.parent.id, SIBLING.key, SIBLING.cluster, 1.0, environment, "run-9", 1.5, created_at=1.8e9)]
        )
        registry.mark_drift({family.child.id: "1.4 times slower"}, "a check")
        registry.invalidate([family.grandchild.id], "old")
    shown = " ".join(invoke("lineage", family.parent.id[:10]).stdout.split())
    for mark in ("[refuted for 1 workload]", "[drifted]", "[invalidated]"):
        assert mark in shown
    rows = json.loads(invoke("lineage", family.parent.id[:10], "--json").stdout)["records"]
    assert [(bool(r["refuted"]), bool(r["drift"]), bool(r["invalidated"])) for r in rows] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert "drifted" in invoke("records", "list").stdout


def _records() -> Family:
    record = TuningRecord(
        workload_key="ab" * 32,
        environment_key="12" * 32,
        trace=None,
        sketch="34" * 32,
        decisions=(("SamplePerfectTile", (4, 14)),),
        run_times_s=(0.001, 0.0012, 0.0011),
        trials=32,
        depth=32,
        state=RecordState.PUBLISHED,
        run_id="0123456789abcdef",
        untuned_s=0.0044,
    )
    return family_of(record)


def _lineage() -> Lineage:
    family = _records()
    parent = dataclasses.replace(family.parent, parent_id="fe" * 32, drift="1.4 times slower")
    workloads = {SIBLING.key: SIBLING, COUSIN.key: dataclasses.replace(COUSIN, op="conv2d+add+divide+erf+multiply+multiply")}
    return Lineage(family.child, (parent,), (family.grandchild,), workloads, {family.child.id: 2})


def _recalled(**changes: Any) -> Recalled:
    family = _records()
    recalled = Recalled(
        selection={"record": "3f9a", "with_descendants": True},
        records=(family.parent, family.child, family.grandchild),
        n_descendants=2,
        n_before=1,
        networks=(("ppocr-det", "v4", True), ("ppocr-det", "v6", False)),
        grades={Grade.EXACT: 1, Grade.CLUSTER: 3, Grade.COLD: 2},
    )
    return dataclasses.replace(recalled, **changes)


COMMAND = "bcd-registry invalidate --record 3f9a --with-descendants --reason TEXT --yes"
STORED = Environment({"tvm": "0.27.0", "cores": 2})
DOUBTED = dataclasses.replace(_records().child, drift="1.4 times slower", invalidated=EVENT.id, created_at=0.0)


@pytest.mark.parametrize(
    ("name", "renderable"),
    [
        ("recalled", render_recalled(_recalled(), None, COMMAND)),
        ("recalled-done", render_recalled(_recalled(grades=None), EVENT, COMMAND)),
        ("recalled-none", render_recalled(_recalled(records=(), n_before=0), None, COMMAND)),
        ("restored", render_restored(EVENT)),
        ("lineage", render_lineage(_lineage())),
        ("record-events", render_record(DOUBTED, SIBLING, STORED, [EVENT])),
    ],
)
def test_golden(name: str, renderable: RenderableType) -> None:
    assert_golden(name, renderable)


def test_a_lineage_ends_whatever_the_rows_say() -> None:
    family = _records()
    first, second, third = family.parent, family.child, family.grandchild
    circle = [dataclasses.replace(second, parent_id=first.id), dataclasses.replace(first, parent_id=second.id)]
    lineage = Lineage(first, (), tuple(circle), {}, {})
    assert [record.id for _, record in lineage.nodes()] == [first.id, second.id]
    chain: list[TuningRecord] = [third]
    for i in range(3000):
        chain.append(dataclasses.replace(third, run_id=f"link-{i}", parent_id=chain[-1].id))
    deep = Lineage(third, (), tuple(chain[1:]), {}, {})
    assert [generation for generation, _ in deep.nodes()] == list(range(3001))
    forty = dataclasses.replace(deep, descendants=tuple(chain[1:40]))
    assert max(map(len, text_of(render_lineage(forty)).splitlines())) <= 80


@pytest.mark.parametrize("command", ["invalidate", "restore", "lineage"])
def test_every_help_has_an_example_that_fits(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example:\n    bcd-registry {command}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
