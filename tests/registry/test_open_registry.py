from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bcd_registry.catalog.schema import HEAD
from bcd_registry.catalog.tables import VERSION_TABLE
from bcd_registry.errors import SchemaMismatch, StoreDenied, StoreUnavailable
from bcd_registry.model import Grade, RecordState
from bcd_registry.settings import load_settings, open_registry, upgrade_catalog
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_record, make_workload

OWN = make_workload("own")


def test_the_home_is_made_and_kept(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "new" / "home")
    with open_registry(settings) as registry:
        registry.put_workloads([OWN])
        record = make_record(OWN, registry.put_environment(ENVIRONMENT), state=RecordState.CHECKED)
        registry.publish([record])
    with open_registry(settings) as registry:
        (match,) = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
        assert match.grade is Grade.EXACT
    assert sorted(path.name for path in settings.home.iterdir()) == ["blobs", "catalog.db"]


def test_switched_off_it_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_REGISTRY", "off")
    settings = load_settings()
    with open_registry(settings) as registry:
        registry.put_workloads([OWN])
        record = make_record(OWN, registry.put_environment(ENVIRONMENT), state=RecordState.CHECKED)
        registry.publish([record])
        assert registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})[0].grade is Grade.EXACT
    with open_registry(settings) as registry:
        assert registry.list_records() == []
    assert not settings.home.exists()


@pytest.mark.parametrize("home", ["file", "file/below"])
def test_a_file_in_place_of_the_home(tmp_path: Path, home: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="not a folder") as caught:
        open_registry(load_settings(home=tmp_path / home))
    assert "BCD_HOME" in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    for home in (tmp_path / "locked", tmp_path / "locked" / "below"):
        with pytest.raises(StoreDenied):
            open_registry(load_settings(home=home))


def test_a_home_where_nothing_can_be_made() -> None:
    with pytest.raises((StoreDenied, StoreUnavailable)) as caught:
        open_registry(load_settings(home=Path("/proc/bcd-registry")))
    assert "BCD_HOME" in caught.value.hint


def test_a_full_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "home"))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StoreUnavailable, match="no space left"):
        open_registry(load_settings())


def test_the_catalog_is_upgraded_only_when_asked() -> None:
    settings = load_settings()
    assert upgrade_catalog(settings) == (None, HEAD)
    assert upgrade_catalog(settings) == (HEAD, HEAD)
    connection = sqlite3.connect(settings.home / "catalog.db")
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.commit()
    connection.close()
    for call in (open_registry, upgrade_catalog):
        with pytest.raises(SchemaMismatch, match="newer release"):
            call(settings)


BATCH = 6
WRITER = f"""
import itertools, sys
from dataclasses import replace
from pathlib import Path
from bcd_registry.model import RecordState
from bcd_registry.settings import load_settings, open_registry
from bcd_registry.testing.values import ENVIRONMENT, make_record, make_workload

with open_registry(load_settings(home=Path(sys.argv[1]))) as registry:
    workload = make_workload("own")
    registry.put_workloads([workload])
    key = registry.put_environment(ENVIRONMENT)
    for i in itertools.count():
        run = f"{{sys.argv[2]}}-{{i}}"
        record = make_record(workload, key, run_id=run, state=RecordState.CHECKED)
        registry.publish([replace(record, trace=[run, j], decisions=(("SampleCategorical", j),)) for j in range({BATCH})])
        print(run, flush=True)
"""


def test_a_killed_writer_leaves_no_half_record(tmp_path: Path) -> None:
    home = tmp_path / "home"
    acknowledged: list[str] = []
    for attempt, n_batches in enumerate((1, 2, 3, 5)):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(home), str(attempt)], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert writer.stdout is not None
        acknowledged += [writer.stdout.readline().strip() for _ in range(n_batches)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += writer.stdout.read().split()
        writer.wait(30)
        writer.stdout.close()
        _check_whole(home, acknowledged)


def _check_whole(home: Path, acknowledged: list[str]) -> None:
    """Every batch is there whole or not at all, what was acknowledged is there, and every trace can be read."""
    with open_registry(load_settings(home=home)) as registry:
        records = [registry.get_record(record.id) for record in registry.list_records(limit=10_000)]
        runs = [record.run_id for record in records]
        assert all(runs.count(run) == BATCH for run in set(runs))
        assert set(acknowledged) <= set(runs)
        assert all(record.trace[0] == record.run_id for record in records)
        registry.put_environment(ENVIRONMENT)
        assert registry.get_workloads([OWN.key, hex_of("none")]) == {OWN.key: OWN}
