from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd_registry.blobs.s3 import S3Blobs
from bcd_registry.catalog.schema import HEAD
from bcd_registry.catalog.tables import VERSION_TABLE
from bcd_registry.errors import ConfigError, SchemaMismatch, StoreDenied, StoreUnavailable
from bcd_registry.model import Grade, RecordState, TuningRecord
from bcd_registry.registry import Registry
from bcd_registry.settings import load_settings, open_registry, upgrade_catalog
from bcd_registry.stores import open_blobs, read_revision
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_record, make_workload
from infra.local_stack import LocalStack

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


def publish_one(registry: Registry) -> TuningRecord:
    registry.put_workloads([OWN])
    record = make_record(OWN, registry.put_environment(ENVIRONMENT), state=RecordState.CHECKED)
    (published,) = registry.publish([record])
    return published


def grade(registry: Registry) -> Grade:
    (match,) = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
    return match.grade


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_sqlite_file_and_a_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "team").mkdir()
    monkeypatch.setenv("BCD_DATABASE_URL", f"sqlite:///{tmp_path}/team/catalog.db")
    monkeypatch.setenv("BCD_BLOBS_URL", f"file://{tmp_path}/team/my%20blobs")
    settings = load_settings()
    assert upgrade_catalog(settings) == (None, HEAD)
    with open_registry(settings) as registry:
        publish_one(registry)
        assert grade(registry) is Grade.EXACT
    assert sorted(path.name for path in (tmp_path / "team").iterdir()) == ["catalog.db", "my blobs"]
    assert not settings.home.exists()
    assert read_revision(settings) == HEAD


@pytest.fixture
def team(stack: LocalStack, postgres_url: str, s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a team, for an empty registry."""
    for name, value in stack.identity.s3_credentials.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BCD_DATABASE_URL", postgres_url)
    monkeypatch.setenv("BCD_BLOBS_URL", s3_prefix)
    monkeypatch.setenv("BCD_S3_ENDPOINT_URL", stack.identity.s3_endpoint)


def test_a_team_s_registry(team: None, tmp_path: Path) -> None:
    with open_registry(load_settings(home=tmp_path / "mine")) as registry:
        record = publish_one(registry)
    yours = load_settings(home=tmp_path / "yours")
    assert read_revision(yours) == HEAD
    with open_registry(yours) as registry:
        assert grade(registry) is Grade.EXACT
        assert registry.get_record(record.id).trace == record.trace
    assert [path.name for path in yours.home.iterdir()] == ["blob-cache"]


def lose_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any request to a bucket from now on is an error."""

    def asked(_: S3Blobs) -> object:
        raise StoreUnavailable("the bucket was asked")

    monkeypatch.setattr(S3Blobs, "_client", asked)


def test_the_second_lookup_does_not_ask_the_bucket(team: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_registry(load_settings()) as registry:
        publish_one(registry)
    with open_registry(load_settings(home=tmp_path / "other")) as registry:
        assert grade(registry) is Grade.EXACT
    with (
        open_registry(load_settings(home=tmp_path / "other")) as registry,
        open_registry(load_settings(home=tmp_path / "third")) as without_copies,
    ):
        lose_bucket(monkeypatch)
        assert grade(registry) is Grade.EXACT
        with pytest.raises(StoreUnavailable, match="the bucket was asked"):
            grade(without_copies)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes a request and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_bucket_that_does_not_answer_shows_when_the_registry_is_opened(
    team: None, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BCD_CONNECT_TIMEOUT_S", "1")
    for endpoint in ("http://127.0.0.1:1", silent):
        monkeypatch.setenv("BCD_S3_ENDPOINT_URL", endpoint)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="does not answer") as caught:
            open_registry(load_settings())
        assert time.monotonic() - began < 5
        assert endpoint in caught.value.message
        assert "BCD_S3_ENDPOINT_URL" in caught.value.hint


def test_a_bucket_that_is_not_there_shows_when_the_registry_is_opened(team: None, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade_catalog(load_settings())
    monkeypatch.setenv("BCD_BLOBS_URL", "s3://nobodys-bucket/team")
    for read_only in (False, True):
        with pytest.raises(StoreUnavailable, match="there is no bucket 'nobodys-bucket'") as caught:
            open_registry(load_settings(read_only=read_only))
        assert "BCD_BLOBS_URL" in caught.value.hint


def test_wrong_credentials_show_when_the_registry_is_opened(team: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobodyssecret")
    with pytest.raises(StoreDenied, match="denies access key") as caught:
        open_registry(load_settings())
    assert "nobodyssecret" not in f"{caught.value.message} {caught.value.hint}"


def test_blobs_that_are_opened_alone_are_not_asked_for(team: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_S3_ENDPOINT_URL", "http://127.0.0.1:1")
    with open_blobs(load_settings()) as blobs, pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:1"):
        blobs.exists(hex_of("abc"))


def test_read_only_refuses_before_a_request_is_sent(team: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_registry(load_settings()) as registry:
        publish_one(registry)
    with open_registry(load_settings(read_only=True)) as registry:
        lose_bucket(monkeypatch)
        assert grade(registry) is Grade.EXACT
        for call in (lambda: registry.put_workloads([OWN]), lambda: registry.put_environment(ENVIRONMENT)):
            with pytest.raises(StoreDenied, match="read-only"):
                call()
    with open_blobs(load_settings(read_only=True)) as blobs:
        for write in (lambda: blobs.put(b"abc"), lambda: blobs.delete(hex_of("abc"))):
            with pytest.raises(StoreDenied, match="read-only"):
                write()
    with pytest.raises(StoreDenied, match="read-only"):
        upgrade_catalog(load_settings(read_only=True))


def test_read_only_makes_nothing(tmp_path: Path) -> None:
    settings = load_settings(read_only=True)
    with open_registry(settings) as registry:
        assert grade(registry) is Grade.COLD
    assert read_revision(settings) is None
    assert not settings.home.exists()
    with pytest.raises(StoreUnavailable, match="there is no catalog"):
        open_registry(load_settings(read_only=True, require_registry=True))


def test_read_only_leaves_an_embedded_registry_as_it_is(tmp_path: Path) -> None:
    with open_registry(load_settings()) as registry:
        publish_one(registry)
    before = {name: (tmp_path / "home" / name).stat().st_mtime_ns for name in files_below(tmp_path / "home")}
    with open_registry(load_settings(read_only=True)) as registry:
        assert grade(registry) is Grade.EXACT
        with pytest.raises(StoreDenied):
            publish_one(registry)
    assert set(files_below(tmp_path / "home")) == set(before)
    assert (tmp_path / "home" / "catalog.db").stat().st_mtime_ns == before["catalog.db"]


def test_read_only_makes_no_tables(team: None) -> None:
    with pytest.raises(SchemaMismatch, match="no tables yet"):
        open_registry(load_settings(read_only=True))
    assert read_revision(load_settings()) is None


def test_what_was_opened_is_closed_when_the_rest_cannot_be(team: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "bcd_registry.blobs.s3", raising=False)
    with pytest.raises(ConfigError, match="library for S3 is not installed"):
        open_registry(load_settings())


def test_a_home_that_no_url_can_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a \\? in its path"):
        load_settings(home=tmp_path / "what?")
