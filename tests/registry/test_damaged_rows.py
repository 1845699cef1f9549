"""Rows that a disk or an editor damaged: they are left out and named, and what refers to them goes with them."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import CorruptBlob
from bcd_registry.model import Grade, RecordState
from bcd_registry.registry import Registry
from bcd_registry.testing.values import ENVIRONMENT, make_network, make_record, make_run, make_snapshot, make_workload

WORKLOADS = (make_workload("one", cluster="c"), make_workload("two", cluster="c"))
DEPTHS = {workload.key: 32 for workload in WORKLOADS}

Damage = Callable[[str, str, Any], None]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        registry = Registry(catalog, MemoryBlobs())
        key = registry.put_environment(ENVIRONMENT)
        registry.register_network(make_network("ocr", "1", WORKLOADS))
        registry.publish([make_record(workload, key, state=RecordState.CHECKED) for workload in WORKLOADS])
        registry.add_cost_model(make_snapshot())
        registry.put_run(make_run("run-1"))
        yield registry


@pytest.fixture
def damage(tmp_path: Path, registry: Registry) -> Damage:
    """Set a column of every row of a table, or of those of the first workload."""

    def set_column(table: str, column: str, value: Any) -> None:
        own = f" WHERE workload_key = '{WORKLOADS[0].key}'" if table == "bcd_records" else ""
        own = f" WHERE key = '{WORKLOADS[0].key}'" if table == "bcd_workloads" else own
        with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
            connection.execute(f"UPDATE {table} SET {column} = ?{own}", (value,))
            connection.commit()

    return set_column


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("decisions", "{"),
        ("decisions", DEEP),
        ("decisions", "[7]"),
        ("decisions", '[["SamplePerfectTile",[1,"2"]]]'),
        ("decisions", '[["SamplePerfectTile",[64,64]]]'),
        ("run_times_s", "[]"),
        ("run_times_s", "[NaN]"),
        ("run_times_s", "[-0.001]"),
        ("run_times_s", '["fast"]'),
        ("run_times_s", "7"),
        ("state", "excellent"),
        ("trials", "many"),
        ("depth", 1.5),
        ("created_at", "yesterday"),
        ("trace_digest", "../../etc/passwd"),
        ("sketch", b"\x00\xff"),
        ("run_id", "another"),
    ],
)
def test_a_damaged_record_is_left_out(
    registry: Registry, damage: Damage, column: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    [record] = registry.list_records(workload=WORKLOADS[0].key)
    damage("bcd_records", column, value)
    with caplog.at_level(logging.WARNING):
        one, two = registry.lookup(WORKLOADS, ENVIRONMENT, DEPTHS)
    assert (one.grade, two.grade) == (Grade.CLUSTER, Grade.EXACT)
    assert f"the row of record {record.id[:12]} is damaged" in caplog.text
    assert len(registry.list_records()) == 1
    with pytest.raises(CorruptBlob, match="damaged") as caught:
        registry.get_record(record.id)
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("value", ["", "[0]", "[-1]", "[1.5]", '["8"]', DEEP, "7"])
def test_what_refers_to_a_damaged_workload_goes_with_it(registry: Registry, damage: Damage, value: str) -> None:
    damage("bcd_workloads", "extents", value)
    one, two = registry.lookup(WORKLOADS, ENVIRONMENT, DEPTHS)
    assert (one.grade, two.grade) == (Grade.CLUSTER, Grade.EXACT)
    assert registry.list_networks() == []
    assert list(registry.get_workloads(list(DEPTHS))) == [WORKLOADS[1].key]
    with pytest.raises(CorruptBlob):
        registry.get_network("ocr", "1")


@pytest.mark.parametrize("value", ["", "[]", "7", DEEP])
def test_what_was_measured_in_a_damaged_environment_is_left_out(registry: Registry, damage: Damage, value: str) -> None:
    damage("bcd_environments", "fields", value)
    assert {match.grade for match in registry.lookup(WORKLOADS, ENVIRONMENT, DEPTHS)} == {Grade.COLD}
    with pytest.raises(CorruptBlob, match="environment"):
        registry.get_environment(registry.list_records()[0].environment_key)


def test_a_damaged_cost_model_is_named(registry: Registry, damage: Damage) -> None:
    damage("bcd_cost_models", "metadata", "[")
    with pytest.raises(CorruptBlob, match="cost model"):
        registry.latest_cost_model(make_snapshot().target)


def test_damaged_runs_and_networks_are_not_listed(registry: Registry, damage: Damage) -> None:
    damage("bcd_runs", "report", "[" * 10)
    damage("bcd_networks", "shapes", '{"x": ["y"]}')
    assert registry.list_runs() == []
    assert registry.list_networks() == []
    with pytest.raises(CorruptBlob, match="network ocr"):
        registry.get_network("ocr", "1")
