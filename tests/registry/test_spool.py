from __future__ import annotations

import dataclasses
import json
import logging
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import Conflict, NotFound, StoreDenied, StoreUnavailable
from bcd_registry.model import Environment, RecordState, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.settings import Settings, load_settings, open_registry
from bcd_registry.spool import (
    Outbox,
    Published,
    Results,
    Spool,
    give,
    open_spool,
    origin_of,
    publish_at_start,
    publish_spool,
)
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import (
    ENVIRONMENT,
    hex_of,
    make_network,
    make_record,
    make_refutation,
    make_run,
    make_snapshot,
    make_workload,
)
from infra.local_stack import LocalStack

OWN = make_workload("own", cluster="c", extents=(16, 64))
SIBLING = make_workload("sibling", cluster="c", extents=(16, 128))
NETWORK = make_network("ocr", "1", (OWN, SIBLING))
KEY = environment_key(ENVIRONMENT)
RUN = "ab12cd34ef567890"


class Line:
    """What a catalog is behind, and what can be cut."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self._catalog = catalog
        self.cut = False
        self.calls_left = math.inf
        self.denied = False
        self.n_calls = 0

    def __getattr__(self, name: str) -> Any:
        self.n_calls += 1
        self.calls_left -= 1
        if self.denied:
            raise StoreDenied("the catalog is read-only")
        if self.cut or self.calls_left < 0:
            raise StoreUnavailable("the catalog does not answer", hint="wait")
        return getattr(self._catalog, name)


@dataclasses.dataclass
class Place:
    """A registry behind a line, and where its spools lie."""

    registry: Registry
    line: Line
    root: Path
    now: float = 0.0

    def outbox(self, **options: Any) -> Outbox:
        spool = Spool(self.root, RUN, clock=lambda: 3000.0)
        return Outbox(self.registry, spool, clock=lambda: self.now, **options)

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*.json*") if path.is_file())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        line = Line(catalog)
        registry = Registry(cast(Any, line), LocalBlobs(tmp_path / "blobs"), clock=lambda: 5000.0)
        yield Place(registry, line, tmp_path / "home" / "spool")


def measured(workload: Workload, n: int = 0, **changes: Any) -> TuningRecord:
    fields: dict[str, Any] = {
        "trace": [[["SamplePerfectTile", ["l0"], [4, n], None, 1.5e-9, True]], [[0, [8, n]]]],
        "decisions": (("SampleCategorical", n), ("SamplePerfectTile", (8, n))),
        "run_times_s": (1e-3 + n * 1e-7, 0.1 + 0.2),
        "run_id": RUN,
        "parent_id": hex_of("parent"),
    }
    return make_record(workload, KEY, **{**fields, **changes})


CHECKED = measured(OWN, 1, state=RecordState.CHECKED, untuned_s=None)
PRIOR = measured(SIBLING, 2)
WRONG = measured(OWN, 3)
EVERYTHING = Results(
    environment=ENVIRONMENT,
    workloads=(make_workload("alone"),),
    network=dataclasses.replace(NETWORK, created_at=0.0),
    kept=(PRIOR, WRONG),
    published=(CHECKED,),
    quarantined={WRONG.id: "its output differs: 1e-3"},
    refutations=(make_refutation(PRIOR, OWN, distance=math.inf, ratio=math.inf, created_at=0.0),),
    cost_model=make_snapshot(booster=bytes(range(256)), samples=b"PK\x03\x04 \xff", created_at=0.0),
    run=make_run(RUN, report={"schema": 1, "tasks": [{"grade": "cold", "note": "σ = 0.1"}], "curve": [[0.0, 1e-300]]}),
)


def assert_everything(registry: Registry, created_at: float) -> None:
    assert EVERYTHING.network is not None
    assert EVERYTHING.cost_model is not None
    assert EVERYTHING.run is not None
    assert registry.get_environment(KEY).as_json() == ENVIRONMENT.as_json()
    assert registry.get_record(PRIOR.id) == PRIOR
    assert registry.get_record(CHECKED.id) == CHECKED.with_state(RecordState.PUBLISHED)
    wrong = registry.get_record(WRONG.id)
    assert (wrong.state, wrong.reason) == (RecordState.QUARANTINED, "its output differs: 1e-3")
    assert registry.get_network("ocr", "1") == dataclasses.replace(EVERYTHING.network, created_at=created_at)
    model = registry.latest_cost_model(EVERYTHING.cost_model.target)
    assert model == dataclasses.replace(EVERYTHING.cost_model, created_at=created_at)
    assert registry.list_runs() == [EVERYTHING.run]
    assert registry.counts()["refutations"] == 1
    assert len(registry.get_workloads([OWN.key, SIBLING.key, make_workload("alone").key])) == 3


def test_what_is_spooled_is_published_as_it_was(place: Place) -> None:
    Spool(place.root, RUN, clock=lambda: 3000.0).write(EVERYTHING)
    done = publish_spool(place.registry, place.root)
    assert done == Published(runs=(RUN,), n_files=1, n_records=3)
    assert_everything(place.registry, created_at=3000.0)
    assert not (place.root / RUN).exists()
    assert publish_spool(place.registry, place.root) == Published()


def test_given_at_once_it_is_the_same(place: Place) -> None:
    give(place.registry, EVERYTHING)
    assert_everything(place.registry, created_at=5000.0)
    give(place.registry, Results())


def test_files_are_plain_and_named_by_their_content(place: Place) -> None:
    path = Spool(place.root, RUN).write(EVERYTHING)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["results"]["kept"][0]["trace"] == PRIOR.trace
    blobs = {blob.digest for blob in LocalBlobs(place.root / RUN / "blobs").iter_blobs()}
    assert {found["results"]["cost_model"][name] for name in ("booster", "samples")} == blobs
    assert not list(place.root.rglob("*.tmp"))


def test_publishing_twice_changes_nothing(place: Place, tmp_path: Path) -> None:
    Spool(place.root, RUN, clock=lambda: 3000.0).write(EVERYTHING)
    shutil.copytree(place.root, tmp_path / "again")
    publish_spool(place.registry, place.root)
    assert publish_spool(place.registry, tmp_path / "again").n_files == 1
    assert_everything(place.registry, created_at=3000.0)


def test_nothing_is_removed_before_the_registry_has_it(place: Place) -> None:
    spool = Spool(place.root, RUN, clock=lambda: 3000.0)
    spool.write(EVERYTHING)
    spool.write(Results(ENVIRONMENT, (OWN,), kept=(measured(OWN, 9),)))
    n_attempts = 0
    while place.root.joinpath(RUN).exists():
        n_files = len(place.files())
        place.line.calls_left = n_attempts
        try:
            publish_spool(place.registry, place.root)
        except StoreUnavailable:
            assert 1 <= len(place.files()) <= n_files
        n_attempts += 1
    assert n_attempts > 8
    place.line.calls_left = math.inf
    assert_everything_and_one_more(place.registry)


def assert_everything_and_one_more(registry: Registry) -> None:
    assert registry.get_record(measured(OWN, 9).id) == measured(OWN, 9)
    assert_everything(registry, created_at=3000.0)


@pytest.mark.parametrize("what", ["flipped", "cut", "empty", "of another form", "without its blob", "with a damaged blob"])
def test_a_damaged_file_is_set_aside_and_the_others_are_published(
    place: Place, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    spool = Spool(place.root, RUN, clock=lambda: 3000.0)
    path = spool.write(EVERYTHING)
    others = [measured(OWN, n) for n in (7, 8)]
    for other in others:
        spool.write(Results(ENVIRONMENT, (OWN,), kept=(other,)))
    data = path.read_bytes()
    blob = next(path for path in (place.root / RUN / "blobs").rglob("*") if len(path.name) == 64)
    if what == "flipped":
        path.write_bytes(data.replace(b'"trials":32', b'"trials":64'))
    elif what == "cut":
        path.write_bytes(data[:-1])
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "of another form":
        strange = b'{"origin":"","results":{"kept":[3]}}'
        path.unlink()
        path = path.with_name(f"{path.name[:6]}-{_digest(strange)}.v1.json")
        path.write_bytes(strange)
    elif what == "without its blob":
        blob.unlink()
    else:
        blob.write_bytes(b"other bytes")
    done = publish_spool(place.registry, place.root)
    assert (done.n_files, len(done.set_aside)) == (2, 1)
    assert [place.registry.get_record(other.id) for other in others] == others
    aside = path.with_name(f"{path.name}.damaged")
    assert place.files() == [aside]
    assert done.set_aside[0].startswith(f"{aside}: set aside: ")
    assert "\n" not in done.set_aside[0]
    assert done.set_aside[0] in caplog.text
    assert publish_spool(place.registry, place.root) == Published()


def _digest(data: bytes) -> str:
    from bcd_registry.blobs.digests import blob_digest

    return blob_digest(data)


def test_what_the_registry_refuses_is_set_aside_too(place: Place) -> None:
    spool = Spool(place.root, RUN)
    spool.write(Results(ENVIRONMENT, (OWN, SIBLING), refutations=(make_refutation(PRIOR, OWN),)))
    spool.write(Results(ENVIRONMENT, (SIBLING,), kept=(PRIOR,)))
    done = publish_spool(place.registry, place.root)
    assert (done.n_files, len(done.set_aside)) == (1, 1)
    assert place.files()[0].suffix == ".refused"
    assert place.registry.get_record(PRIOR.id) == PRIOR


def test_files_of_other_releases_and_of_killed_writers(place: Place) -> None:
    spool = Spool(place.root, RUN)
    path = spool.write(Results(ENVIRONMENT, (SIBLING,), kept=(PRIOR,)))
    later = path.with_name(f"000009-{'0' * 64}.v2.json")
    later.write_text("{}")
    (place.root / RUN / ".half.tmp").write_text("{")
    publish_spool(place.registry, place.root)
    assert place.files() == [later]
    later.unlink()
    publish_spool(place.registry, place.root)
    assert not (place.root / RUN).exists()


def test_results_for_another_registry_stay(place: Place) -> None:
    Spool(place.root, "their-run", origin="postgresql://team/db").write(Results(ENVIRONMENT, (SIBLING,), kept=(PRIOR,)))
    Spool(place.root, RUN).write(Results(ENVIRONMENT, (OWN,), kept=(WRONG,)))
    done = publish_spool(place.registry, place.root, origin="")
    assert (done.runs, done.n_files, done.foreign) == ((RUN,), 1, (place.root / "their-run",))
    assert [record.id for record in place.registry.list_records()] == [WRONG.id]
    assert publish_spool(place.registry, place.root).runs == ("their-run",)


def test_an_old_version_does_not_replace_a_newer_one(place: Place) -> None:
    Spool(place.root, RUN, clock=lambda: 3000.0).write(Results(network=dataclasses.replace(NETWORK, created_at=0.0)))
    newer = make_network("ocr", "1", (OWN,), created_at=4000.0)
    place.registry.register_network(newer)
    assert publish_spool(place.registry, place.root).n_files == 1
    assert place.registry.get_network("ocr", "1") == newer


def test_a_reader_cannot_publish(place: Place) -> None:
    Spool(place.root, RUN).write(Results(ENVIRONMENT, (OWN,), kept=(WRONG,)))
    place.line.denied = True
    with pytest.raises(StoreDenied):
        publish_spool(place.registry, place.root)
    assert len(place.files()) == 1


def test_a_spool_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="not a folder"):
        Spool(tmp_path / "file", RUN).write(Results(run=make_run("a")))

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreUnavailable, match="no space left"):
        Spool(tmp_path / "spool", RUN).write(Results(run=make_run("a")))
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".json", ".tmp")]


def test_an_outbox_gives_at_once_while_the_registry_answers(place: Place) -> None:
    outbox = place.outbox()
    assert outbox.register(NETWORK, ENVIRONMENT) == KEY
    assert outbox.give(Results(kept=(PRIOR,)))
    assert outbox.give(Results(published=(CHECKED,)))
    assert outbox.settle() == ""
    assert not place.root.exists()
    assert len(place.registry.list_records()) == 2


def test_an_outbox_spools_while_the_registry_does_not_answer_and_settles_at_the_end(place: Place) -> None:
    outbox = place.outbox(retry_after_s=30.0)
    outbox.register(NETWORK, ENVIRONMENT)
    place.line.cut = True
    for result in (Results(kept=(PRIOR,)), Results(published=(CHECKED,)), Results(run=EVERYTHING.run)):
        assert not outbox.give(result)
    assert outbox.give(Results(kept=(), quarantined={}))
    assert len(place.files()) == 3
    line = outbox.settle()
    assert "does not answer" in line
    assert "bcd-registry publish --spool" in line
    assert str(place.root / RUN) in line
    place.line.cut = False
    assert place.registry.list_records() == []
    assert "published now" in outbox.settle()
    assert not (place.root / RUN).exists()
    assert {record.id for record in place.registry.list_records()} == {PRIOR.id, CHECKED.id}
    assert len(place.registry.list_runs()) == 1


def test_a_registry_that_does_not_answer_is_left_alone_for_a_while(place: Place) -> None:
    outbox = place.outbox(retry_after_s=30.0)
    outbox.register(NETWORK, ENVIRONMENT)
    place.line.cut = True
    outbox.give(Results(kept=(PRIOR,)))
    n_calls = place.line.n_calls
    place.now = 29.0
    assert not outbox.give(Results(kept=(WRONG,)))
    assert place.line.n_calls == n_calls
    place.now, place.line.cut = 31.0, False
    assert outbox.give(Results(published=(CHECKED,)))
    assert len(place.files()) == 2


def test_what_was_found_before_the_registry_answered_first(place: Place) -> None:
    """The network was never registered: what is given later brings what its records refer to."""
    outbox = place.outbox(retry_after_s=30.0)
    place.line.cut = True
    assert outbox.register(NETWORK, ENVIRONMENT) == KEY
    place.line.cut, place.now = False, 31.0
    assert outbox.give(Results(kept=(PRIOR,)))
    assert place.registry.list_networks() == []
    assert "published now" in outbox.settle()
    assert [network.name for network in place.registry.list_networks()] == ["ocr"]


def test_each_file_brings_what_its_records_refer_to(place: Place, tmp_path: Path) -> None:
    outbox = place.outbox()
    outbox.register(NETWORK, ENVIRONMENT)
    place.line.cut = True
    outbox.give(Results(kept=(PRIOR,)))
    with SqlCatalog.open_memory() as catalog:
        restored = Registry(catalog, LocalBlobs(tmp_path / "restored"))
        assert publish_spool(restored, place.root).n_records == 1
        assert restored.get_record(PRIOR.id) == PRIOR


def test_what_is_refused_is_not_spooled(place: Place) -> None:
    outbox = place.outbox()
    outbox.register(NETWORK, ENVIRONMENT)
    with pytest.raises(NotFound):
        outbox.give(Results(kept=(make_record(make_workload("unknown"), KEY),)))
    lease = place.registry.acquire_lease("cluster", "run-1", 0.0)
    assert lease is not None
    assert place.registry.acquire_lease("cluster", "run-2", 60.0) is not None
    with pytest.raises(Conflict):
        outbox.give(Results(kept=(PRIOR,)), fences=[lease])
    place.line.denied = True
    with pytest.raises(StoreDenied):
        outbox.give(Results(kept=(PRIOR,)))
    assert not place.root.exists()


def test_without_a_spool_errors_are_raised(place: Place) -> None:
    outbox = Outbox(place.registry, None)
    outbox.register(NETWORK, ENVIRONMENT)
    place.line.cut = True
    with pytest.raises(StoreUnavailable):
        outbox.give(Results(kept=(PRIOR,)))
    assert outbox.settle() == ""


def test_without_a_registry_all_is_spooled(place: Place) -> None:
    outbox = Outbox(None, Spool(place.root, RUN), reason="the catalog could not be opened")
    assert outbox.register(NETWORK, ENVIRONMENT) == KEY
    assert not outbox.give(Results(kept=(PRIOR,)))
    assert "the catalog could not be opened" in outbox.settle()
    assert publish_spool(place.registry, place.root).n_files == 2
    assert place.registry.get_record(PRIOR.id) == PRIOR
    with pytest.raises(StoreUnavailable, match="no registry to keep results in"):
        Outbox(None, None).give(Results(kept=(PRIOR,)))


def test_a_command_publishes_what_is_spooled_when_it_begins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings(home=tmp_path / "home")
    with open_registry(settings) as registry:
        assert publish_at_start(registry, settings) == ""
        assert not (settings.home / "spool").exists()
        spool = open_spool(settings, RUN)
        assert spool is not None
        spool.write(Results(ENVIRONMENT, (SIBLING,), kept=(PRIOR,)))
        assert publish_at_start(registry, settings) == f"published what run {RUN[:8]} had spooled: 1 record"
        assert registry.get_record(PRIOR.id) == PRIOR
        spool.write(Results(ENVIRONMENT, (SIBLING,), kept=(PRIOR,)))
        with SqlCatalog.open_memory() as catalog:
            line = Line(catalog)
            line.cut = True
            with caplog.at_level(logging.WARNING):
                assert publish_at_start(Registry(cast(Any, line), LocalBlobs(tmp_path / "b")), settings) == ""
    assert "is not published: the catalog does not answer" in caplog.text


def test_a_registry_that_forgets_or_is_only_read_takes_no_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = open_spool(load_settings(home=tmp_path / "home"), RUN)
    assert written is not None
    written.write(Results(ENVIRONMENT, (SIBLING,), kept=(PRIOR,)))
    monkeypatch.setenv("BCD_REGISTRY", "off")
    off = load_settings(home=tmp_path / "home")
    monkeypatch.delenv("BCD_REGISTRY")
    read_only = dataclasses.replace(load_settings(home=tmp_path / "home"), read_only=True)
    for settings in (off, read_only):
        assert open_spool(settings, RUN) is None
        with SqlCatalog.open_memory() as catalog:
            assert publish_at_start(Registry(catalog, LocalBlobs(tmp_path / "b")), settings) == ""
    assert len(list((tmp_path / "home" / "spool").rglob("*.json"))) == 1


def test_an_origin_has_no_secret(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    assert origin_of(settings) == ""
    team = dataclasses.replace(
        settings,
        database_url="postgresql+psycopg://somebody:pass%40word@db.team:5432/bcd?password=hidden",
        blobs_url="s3://bucket/prefix",
        s3_endpoint_url="http://s3.team:9000",
    )
    assert origin_of(team) == "postgresql+psycopg://db.team:5432/bcd http://s3.team:9000 s3://bucket/prefix"


def test_a_run_may_write_while_its_spool_is_published(place: Place) -> None:
    spool = Spool(place.root, RUN)
    n_records = 60
    stop = threading.Event()
    published: list[int] = []

    def publish() -> None:
        while not stop.is_set():
            published.append(publish_spool(place.registry, place.root).n_files)

    publishers = [threading.Thread(target=publish) for _ in range(2)]
    for publisher in publishers:
        publisher.start()
    try:
        for n in range(n_records):
            spool.write(Results(ENVIRONMENT, (OWN,), kept=(measured(OWN, n),)))
    finally:
        stop.set()
        for publisher in publishers:
            publisher.join()
    publish_spool(place.registry, place.root)
    assert {record.id for record in place.registry.list_records(limit=1000)} == {measured(OWN, n).id for n in range(n_records)}
    assert not (place.root / RUN).exists()


@pytest.fixture
def team(stack: LocalStack, postgres_url: str, s3_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a registry on real servers that are given up soon."""
    variables = {
        **stack.environment,
        "BCD_DATABASE_URL": postgres_url,
        "BCD_BLOBS_URL": s3_prefix,
        "BCD_CONNECT_TIMEOUT_S": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings(home=tmp_path / "home")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["postgres", "s3"])
def test_results_outlive_a_server_that_is_killed(stack: LocalStack, team: Settings, name: str) -> None:
    server = getattr(stack, name)
    with open_registry(team) as registry:
        outbox = Outbox(registry, open_spool(team, RUN), retry_after_s=0.0)
        outbox.register(NETWORK, ENVIRONMENT)
        assert outbox.give(Results(kept=(PRIOR,)))
        server.kill()
        results = (Results(published=(CHECKED,)), Results(kept=(WRONG,)), Results(cost_model=make_snapshot()))
        assert [outbox.give(result) for result in results] == [False] * 3
        assert str(team.home / "spool" / RUN) in outbox.settle()
        server.restart()
        assert publish_at_start(registry, team) == f"published what run {RUN[:8]} had spooled: 2 records"
        assert registry.get_record(CHECKED.id) == CHECKED.with_state(RecordState.PUBLISHED)
        assert registry.get_record(WRONG.id) == WRONG
        assert registry.latest_cost_model(make_snapshot().target) == make_snapshot()
    assert not (team.home / "spool" / RUN).exists()


WRITER = """
import itertools, sys
from pathlib import Path
from bcd_registry.spool import Results, Spool
from bcd_registry.testing.values import ENVIRONMENT, make_record, make_snapshot, make_workload
from bcd_registry.staleness import environment_key

spool, workload = Spool(Path(sys.argv[1]), sys.argv[2]), make_workload("own")
for n in itertools.count():
    run_id = f"{sys.argv[2]}-{n}"
    record = make_record(workload, environment_key(ENVIRONMENT), run_id=run_id)
    spool.write(Results(ENVIRONMENT, (workload,), kept=(record,), cost_model=make_snapshot(booster=run_id.encode() * 999)))
    print(run_id, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_was_acknowledged(place: Place) -> None:
    acknowledged: list[str] = []
    for attempt, n_files in enumerate((1, 4, 9)):
        command = [sys.executable, "-c", WRITER, str(place.root), f"run{attempt}"]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert writer.stdout is not None
        acknowledged += [writer.stdout.readline().strip() for _ in range(n_files)]
        writer.kill()
        acknowledged += writer.stdout.read().split()
        writer.wait(30)
        writer.stdout.close()
    done = publish_spool(place.registry, place.root)
    assert done.set_aside == ()
    runs = {record.run_id for record in place.registry.list_records(limit=10_000)}
    assert set(acknowledged) <= runs
    assert len(runs) <= len(acknowledged) + 3
    assert [path for path in place.root.iterdir() if path.is_dir()] == []


def test_environments_of_another_form_survive(place: Place) -> None:
    strange = Environment({"isa": ("b", "a"), "deep": {"x": [1, 2.5, None, {"y": True}]}, "cores": 2})
    Spool(place.root, RUN).write(Results(environment=strange))
    publish_spool(place.registry, place.root)
    assert place.registry.get_environment(environment_key(strange)).fields["deep"] == strange.fields["deep"]
