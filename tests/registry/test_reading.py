"""A lookup reads the nearest relatives only, and answers as if it had read everything."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from bcd_registry.catalog.engines import transaction
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.catalog.tables import metadata
from bcd_registry.lookup import Known, grade_workloads
from bcd_registry.model import Grade, Match, RecordState, Refutation, TuningRecord, Workload
from bcd_registry.nearest import Neighbours, distance
from bcd_registry.reading import Reading
from bcd_registry.staleness import environment_key
from bcd_registry.testing.history_contract import DIGEST
from bcd_registry.testing.values import ENVIRONMENT, make_environment, make_record, make_refutation, make_workload

ENVIRONMENTS = (ENVIRONMENT, make_environment(tvm="0.26.0"), make_environment(isa=["sve"]), make_environment(isa=["rvv"]))
KEYS = tuple(environment_key(environment) for environment in ENVIRONMENTS)
SIZES = (1, 2, 3, 8, 64)

extents = st.lists(st.sampled_from(SIZES), min_size=2, max_size=3).map(tuple)


@given(extents, st.lists(st.tuples(extents, st.integers(0, 3)), max_size=12), st.sampled_from([Grade.CLUSTER, Grade.ANCHOR]))
def test_neighbours_come_in_the_order_of_their_distance(
    own: tuple[int, ...], others: list[tuple[tuple[int, ...], int]], grade: Grade
) -> None:
    workload = make_workload("own", extents=own)
    named = [make_workload(f"other {i} {number}", extents=found) for i, (found, number) in enumerate(others)]
    expected = sorted(named, key=lambda other: (distance(workload, other, grade), other.key))
    assert list(Neighbours(named, grade).by_distance(workload)) == expected


def test_neighbours_without_loops() -> None:
    own, other, far = (make_workload(name, extents=found) for name, found in (("own", ()), ("other", ()), ("far", (2,))))
    assert list(Neighbours([far, other], Grade.CLUSTER).by_distance(own)) == [other, far]
    assert list(Neighbours([], Grade.CLUSTER).by_distance(own)) == []
    assert own.distance(far) == math.inf


def pool(rng: random.Random) -> list[Workload]:
    """Workloads of five clusters with two anchors; now and then one with another number of loops."""
    return [
        make_workload(
            f"w{i}",
            cluster=f"c{i % 5}",
            anchor=f"a{i % 5 // 3}",
            extents=tuple(rng.choice(SIZES) for _ in range(4 if rng.random() < 0.1 else 3)),
        )
        for i in range(35)
    ]


def some_records(workloads: Sequence[Workload], rng: random.Random) -> list[TuningRecord]:
    """Of no, some or most workloads of a cluster, in environments that can be used or not, in every state."""
    shares = {workload.cluster: rng.choice((0.0, 0.0, 0.3, 0.9)) for workload in workloads}
    chosen = [workload for workload in workloads if rng.random() < shares[workload.cluster]]
    states = [*RecordState, RecordState.MEASURED, RecordState.PUBLISHED]
    weights = (6, 3, rng.choice((0, 3)), 1)
    return [
        make_record(
            workload,
            rng.choices(KEYS, weights)[0],
            run_id=f"run {i}",
            decisions=(("SampleCategorical", rng.randrange(3)),),
            state=rng.choice(states),
            run_times_s=(rng.choice((1e-3, 2e-3, 3e-3)),),
            depth=rng.choice((0, 16, 64)),
        )
        for workload in chosen
        for i in range(rng.randrange(5))
    ]


def some_refutations(
    records: Sequence[TuningRecord], workloads: Sequence[Workload], rng: random.Random, share: float
) -> list[Refutation]:
    by_key = {workload.key: workload for workload in workloads}
    found = []
    for record in records:
        misled = rng.choice([w for w in workloads if w.anchor == by_key[record.workload_key].anchor])
        if rng.random() < share:
            far = rng.choice((0.0, 1.0, 2.5, math.inf))
            run, at = rng.choice(("one", "two")), rng.choice((1.0, 2.0))
            changes = {"distance": far, "environment_key": rng.choice(KEYS), "run_id": run, "created_at": at}
            found.append(make_refutation(record, misled, **changes))
    return found


@pytest.fixture(scope="module")
def shared() -> Iterator[SqlCatalog]:
    with SqlCatalog.open_memory() as catalog:
        yield catalog


def fill(catalog: SqlCatalog, workloads: Sequence[Workload], rng: random.Random) -> None:
    with transaction(catalog._engine, write=True) as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(text(f"DELETE FROM {table.name}"))
    catalog.put_workloads(workloads)
    for environment in ENVIRONMENTS:
        catalog.put_environment(environment)
    records = some_records(workloads, rng)
    catalog.add_records(records, [DIGEST] * len(records))
    catalog.add_refutations(some_refutations(records, workloads, rng, rng.choice((0.0, 0.2, 0.9))))


def everything(catalog: SqlCatalog, workloads: Sequence[Workload]) -> Known:
    """All that any of the workloads could be diffused from."""
    keys, clusters, anchors = zip(*((w.key, w.cluster, w.anchor) for w in workloads), strict=True)
    records = [record for record, _ in catalog.find_records(workloads=keys, clusters=clusters, anchors=anchors)]
    return Known(
        records=records,
        workloads=catalog.get_workloads([record.workload_key for record in records]),
        environments=catalog.get_environments(KEYS),
        refutations=catalog.find_refutations(clusters),
    )


def read(catalog: SqlCatalog, workloads: Sequence[Workload], depths: dict[str, int], **options: Any) -> list[Match]:
    reading = Reading(catalog, workloads, ENVIRONMENT, depths, **options)
    return reading.described(reading.grade())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_the_nearest_give_what_everything_gives(shared: SqlCatalog, seed: int) -> None:
    rng = random.Random(seed)
    workloads = pool(rng)
    fill(shared, workloads[3:], rng)
    asked = rng.sample(workloads, rng.randrange(1, 10))
    depths = {workload.key: rng.choice((0, 32)) for workload in asked}
    expected = grade_workloads(asked, everything(shared, asked), ENVIRONMENT, depths)
    assert read(shared, asked, depths) == expected


@pytest.fixture
def queries(catalog: SqlCatalog) -> Iterator[list[str]]:
    """The tables that were read, query by query."""
    tables: list[str] = []

    def note(*arguments: Any) -> None:
        if arguments[2].startswith("SELECT"):
            tables.append(re.findall(r"FROM (bcd_\w+)", arguments[2])[0])

    event.listen(catalog._engine, "before_cursor_execute", note)
    yield tables
    event.remove(catalog._engine, "before_cursor_execute", note)


def hot_cluster(catalog: SqlCatalog, n: int) -> list[Workload]:
    """Workloads of one cluster with two records each, at growing distances from one of 1 x 32 x 64, which is not stored."""
    workloads = [make_workload(f"w{i:04}", cluster="c", extents=(2 + i, 32, 64)) for i in range(n)]
    catalog.put_workloads(workloads)
    key = catalog.put_environment(ENVIRONMENT)
    records = [make_record(workload, key, run_id=f"run {i}") for workload in workloads for i in range(2)]
    catalog.add_records(records, [DIGEST] * len(records))
    return workloads


NEW = make_workload("new", cluster="c", extents=(1, 32, 64))


def test_of_a_hot_cluster_the_nearest_are_read(catalog: SqlCatalog) -> None:
    workloads = hot_cluster(catalog, 400)
    reading = Reading(catalog, [NEW], ENVIRONMENT, {})
    assert reading.digests == {}
    (match,) = reading.grade()
    assert len(reading.digests) == 4 * 2
    assert [prior.workload.key for prior in match.priors] == [w.key for w in workloads[:4]]
    assert match.reason == "no record of this workload; 400 siblings known, nearest at distance 0.6"
    (described,) = reading.described([match])
    assert [prior.workload for prior in described.priors] == workloads[:4]


def test_what_is_found_exactly_needs_no_relatives(catalog: SqlCatalog, queries: list[str]) -> None:
    own = hot_cluster(catalog, 50)[0]
    record = make_record(own, KEYS[0], state=RecordState.PUBLISHED)
    catalog.add_records([record], [DIGEST])
    queries.clear()
    reading = Reading(catalog, [own], ENVIRONMENT, {own.key: 32})
    (match,) = reading.described(reading.grade())
    assert (match.grade, match.record is not None) == (Grade.EXACT, True)
    assert len(reading.digests) == 3
    assert queries.count("bcd_records") == 1


@pytest.mark.parametrize("n", [1, 300])
def test_the_number_of_queries_does_not_grow(catalog: SqlCatalog, queries: list[str], n: int) -> None:
    workloads = hot_cluster(catalog, 600)
    misled = [make_refutation(record, workloads[0]) for record, _ in catalog.list_records(limit=100)]
    catalog.add_refutations(misled)
    queries.clear()
    read(catalog, [NEW, *workloads[:n]], {})
    assert sorted(queries) == [
        "bcd_environments",
        "bcd_records",
        "bcd_records",
        "bcd_refutations",
        "bcd_workloads",
        "bcd_workloads",
    ]


def test_the_next_nearest_take_the_place_of_what_misled(catalog: SqlCatalog) -> None:
    workloads = hot_cluster(catalog, 40)
    by_key = {w.key: w for w in workloads[:10]}
    catalog.put_workloads([NEW])
    records = [record for record, _ in catalog.list_records(limit=1000) if record.workload_key in by_key]
    catalog.add_refutations([make_refutation(record, NEW) for record in records])
    (match,) = read(catalog, [NEW], {})
    assert [prior.workload for prior in match.priors] == workloads[10:14]
    assert "30 siblings known" in match.reason
    assert "10 priors refuted" in match.reason


def test_the_next_nearest_take_the_place_of_what_is_left_out(catalog: SqlCatalog) -> None:
    workloads = hot_cluster(catalog, 40)
    near = {w.key for w in workloads[:6]}
    left_out = {record.id for record, _ in catalog.list_records(limit=1000) if record.workload_key in near}
    (match,) = read(catalog, [NEW], {}, left_out=left_out)
    assert [prior.workload for prior in match.priors] == workloads[6:10]


def test_what_is_bad_is_replaced(catalog: SqlCatalog) -> None:
    workloads = hot_cluster(catalog, 40)
    reading = Reading(catalog, [NEW], ENVIRONMENT, {})
    (match,) = reading.grade()
    reading.leave_out(set(reading.digests))
    (match,) = reading.grade()
    assert [prior.workload.key for prior in match.priors] == [w.key for w in workloads[4:8]]


def test_what_is_stored_meanwhile_is_for_the_next_lookup(catalog: SqlCatalog) -> None:
    workloads = hot_cluster(catalog, 10)
    reading = Reading(catalog, [NEW], ENVIRONMENT, {})
    other = catalog.put_environment(ENVIRONMENTS[1])
    catalog.add_records([make_record(workloads[0], other), make_record(workloads[0], KEYS[0], run_id="later")], [DIGEST] * 2)
    gone = [record.id for record, _ in catalog.list_records(limit=100) if record.workload_key == workloads[1].key]
    catalog.remove_records(gone)
    (match,) = reading.grade()
    assert {prior.record.environment_key for prior in match.priors} == {KEYS[0]}
    assert [prior.workload.key for prior in match.priors] == [workloads[i].key for i in (0, 2, 3, 4)]
