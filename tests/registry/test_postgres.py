from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import event, make_url, text

from bcd_registry.catalog.engines import BUSY_TIMEOUT_S, STATEMENT_TIMEOUT_S, engine_of, transaction
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.catalog.tables import metadata
from bcd_registry.errors import BcdError, Conflict, NotFound, RegistryError, SchemaMismatch, StoreDenied, StoreUnavailable
from bcd_registry.model import RecordState
from bcd_registry.testing.catalog_contract import LONG_S, CatalogContract, taken
from bcd_registry.testing.catalog_machine import CatalogMachine
from bcd_registry.testing.history_contract import DIGEST, stored
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_network, make_record, make_refutation, make_run, make_workload
from infra import programs
from infra.local_stack import LocalStack
from tests.benchmarks.catalog_scale import Shape, fill, lines, measure

PASSWORD = "hunter2hunter2"  # not a secret: the database lives as long as its test


@pytest.fixture(scope="module")
def shared_url(stack: LocalStack) -> str:
    """A database for tests that empty it themselves: making one takes longer than most of them."""
    name = f"shared_{secrets.token_hex(6)}"
    with programs.connect(stack.identity) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    return stack.identity.database_url(name)


@pytest.fixture(scope="module")
def shared_catalog(shared_url: str) -> Iterator[SqlCatalog]:
    with SqlCatalog.open_url(shared_url) as opened:
        yield opened


def emptied(catalog: SqlCatalog) -> SqlCatalog:
    with transaction(catalog._engine, write=True) as connection:
        connection.execute(text(f"TRUNCATE {', '.join(metadata.tables)}"))
    return catalog


class TestPostgresCatalog(CatalogContract):
    @pytest.fixture
    def catalog(self, shared_catalog: SqlCatalog) -> SqlCatalog:
        return emptied(shared_catalog)


def test_any_sequence_of_calls(shared_catalog: SqlCatalog) -> None:
    class PostgresCatalogMachine(CatalogMachine):
        def open_catalog(self) -> SqlCatalog:
            return emptied(shared_catalog)

    few = settings(max_examples=5, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(PostgresCatalogMachine, settings=few)


@pytest.fixture
def catalog(shared_catalog: SqlCatalog) -> SqlCatalog:
    return emptied(shared_catalog)


@pytest.fixture
def make_role(stack: LocalStack, shared_url: str) -> Iterator[Callable[[str], str]]:
    """Makes a role with what is granted, and returns the shared database's URL for it."""
    names: list[str] = []

    def make(grants: str = "", options: str = "") -> str:
        names.append(f"role_{secrets.token_hex(6)}")
        with programs.connect(stack.identity) as connection:
            connection.execute(f"CREATE ROLE {names[-1]} LOGIN PASSWORD '{PASSWORD}' {options}")
        if grants:
            engine = engine_of(shared_url)
            with transaction(engine, write=True) as connection_there:
                connection_there.execute(text(grants.format(role=names[-1])))
            engine.dispose()
        return of_role(shared_url, names[-1])

    yield make
    engine = engine_of(shared_url)
    with transaction(engine, write=True) as connection_there:
        for name in names:
            connection_there.execute(text(f"DROP OWNED BY {name}; DROP ROLE {name}"))
    engine.dispose()


def of_role(url: str, role: str, password: str = PASSWORD) -> str:
    return make_url(url).set(username=role, password=password).render_as_string(hide_password=False)


def with_options(url: str, options: str) -> str:
    return make_url(url).update_query_dict({"options": options}).render_as_string(hide_password=False)


def place_of(url: str) -> str:
    parsed = make_url(url)
    return f"{parsed.host}:{parsed.port}"


def checked(error: BcdError, url: str) -> str:
    """The message: one line, with a hint, with the server and without the password."""
    assert "\n" not in error.message + error.hint
    assert error.hint
    assert place_of(url) in error.message
    assert str(make_url(url).password) not in f"{error.message} {error.hint}"
    return error.message


def test_how_a_connection_is_opened(catalog: SqlCatalog) -> None:
    def shown(name: str, *, write: bool) -> str:
        with transaction(catalog._engine, write=write) as connection:
            return str(connection.execute(text(f"SHOW {name}")).scalar_one())

    for name, value in (
        ("statement_timeout", f"{STATEMENT_TIMEOUT_S / 60:.0f}min"),
        ("idle_in_transaction_session_timeout", f"{STATEMENT_TIMEOUT_S / 60:.0f}min"),
        ("lock_timeout", f"{BUSY_TIMEOUT_S:.0f}s"),
        ("application_name", "bcd-registry"),
    ):
        assert shown(name, write=False) == value
    assert shown("transaction_isolation", write=False) == "repeatable read"
    assert shown("transaction_isolation", write=True) == "read committed"


def test_few_connections_serve_many_threads(catalog: SqlCatalog) -> None:
    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(lambda _: catalog.list_pins(), range(96))) == [set()] * 96
    with transaction(catalog._engine, write=False) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'bcd-registry'"
        assert connection.execute(text(query)).scalar_one() <= 8


def test_a_reader_sees_one_state(catalog: SqlCatalog) -> None:
    count = text("SELECT count(*) FROM bcd_environments")
    with transaction(catalog._engine, write=False) as connection:
        assert connection.execute(count).scalar_one() == 0
        catalog.put_environment(ENVIRONMENT)
        assert connection.execute(count).scalar_one() == 0
    with transaction(catalog._engine, write=False) as connection:
        assert connection.execute(count).scalar_one() == 1


def test_options_of_the_url_go_first(shared_url: str) -> None:
    engine = engine_of(with_options(shared_url, "-c lock_timeout=123ms -c work_mem=8MB"))
    with transaction(engine, write=False) as connection:
        assert connection.execute(text("SHOW lock_timeout")).scalar_one() == "123ms"
        assert connection.execute(text("SHOW work_mem")).scalar_one() == "8MB"
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == f"{STATEMENT_TIMEOUT_S / 60:.0f}min"
    engine.dispose()


def test_nobody_listens(shared_url: str) -> None:
    with socket.socket() as taken_port:
        taken_port.bind(("127.0.0.1", 0))  # bound, so that nobody else listens there
        url = make_url(shared_url).set(port=taken_port.getsockname()[1]).render_as_string(hide_password=False)
        with pytest.raises(StoreUnavailable) as caught:
            SqlCatalog.open_url(url)
    assert "does not answer: connection refused" in checked(caught.value, url)


def test_a_server_that_says_nothing(shared_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = make_url(shared_url).set(port=silent.getsockname()[1]).render_as_string(hide_password=False)
        started = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            SqlCatalog.open_url(url, connect_timeout_s=1.0)
    assert "does not answer in time" in checked(caught.value, url)
    assert time.monotonic() - started < 10


def test_a_wrong_password_and_an_unknown_role(make_role: Callable[[], str], shared_url: str) -> None:
    url = make_role()
    role = str(make_url(url).username)
    for wrong in (of_role(url, role, "wrong-password"), of_role(url, "nobody_knows")):
        with pytest.raises(StoreDenied) as caught:
            SqlCatalog.open_url(wrong)
        assert str(make_url(wrong).username) in checked(caught.value, wrong)


def test_a_database_that_is_not_there(shared_url: str) -> None:
    url = make_url(shared_url).set(database="no_such_database").render_as_string(hide_password=False)
    with pytest.raises(StoreUnavailable) as caught:
        SqlCatalog.open_url(url)
    assert "no_such_database" in checked(caught.value, url)
    assert "createdb no_such_database" in caught.value.hint


def test_a_role_that_may_only_read(catalog: SqlCatalog, make_role: Callable[[str], str]) -> None:
    key = catalog.put_environment(ENVIRONMENT)
    url = make_role("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    with SqlCatalog.open_url(url, create=False) as reader:
        assert reader.get_environment(key).as_json() == ENVIRONMENT.as_json()
        for write in (lambda: reader.put_environment(ENVIRONMENT), lambda: reader.acquire_lease("c", "run-1", LONG_S)):
            with pytest.raises(StoreDenied) as caught:
                write()
            message = checked(caught.value, url)
            assert str(make_url(url).username) in message
            assert str(make_url(url).database) in message
            assert "GRANT" in caught.value.hint


def test_a_role_without_any_right(make_role: Callable[[], str], shared_catalog: SqlCatalog) -> None:
    url = make_role()
    with pytest.raises(StoreDenied) as caught:
        SqlCatalog.open_url(url)
    assert "rights" in checked(caught.value, url)


def test_a_session_that_may_not_write(catalog: SqlCatalog, shared_url: str) -> None:
    """As on a replica, which refuses with the same code."""
    with SqlCatalog.open_url(with_options(shared_url, "-c default_transaction_read_only=on")) as replica:
        assert replica.list_pins() == set()
        with pytest.raises(StoreDenied) as caught:
            replica.put_environment(ENVIRONMENT)
    assert "read-only" in checked(caught.value, shared_url)


def test_too_many_connections(make_role: Callable[..., str]) -> None:
    url = make_role("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}", "CONNECTION LIMIT 1")
    with (
        SqlCatalog.open_url(url, create=False) as first,
        transaction(first._engine, write=False),
        pytest.raises(StoreUnavailable) as caught,
    ):
        SqlCatalog.open_url(url, create=False)
    assert "has no connection left" in checked(caught.value, url)


def test_a_row_that_stays_locked(catalog: SqlCatalog, shared_url: str) -> None:
    lease = taken(catalog.acquire_lease("c", "run-1", LONG_S))
    impatient = SqlCatalog.open_url(with_options(shared_url, "-c lock_timeout=50ms"))
    with impatient, transaction(catalog._engine, write=True) as holder:
        holder.execute(text("SELECT * FROM bcd_leases FOR UPDATE"))
        with pytest.raises(StoreUnavailable) as caught:
            impatient.renew_lease(lease, LONG_S)
    assert "locked by another process" in checked(caught.value, shared_url)


def test_a_statement_that_takes_too_long(shared_url: str) -> None:
    engine = engine_of(with_options(shared_url, "-c statement_timeout=50ms"))

    def sleep() -> None:
        with transaction(engine, write=False) as connection:
            connection.execute(text("SELECT pg_sleep(30)"))

    with pytest.raises(StoreUnavailable) as caught:
        sleep()
    assert "took too long" in checked(caught.value, shared_url)
    engine.dispose()


@pytest.mark.parametrize(
    ("sqlstate", "kind", "words"),
    [
        ("08006", StoreUnavailable, "the connection was lost"),
        ("22001", RegistryError, "failed: raised"),
        ("23503", NotFound, "does not know"),
        ("25006", StoreDenied, "read-only"),
        ("28000", StoreDenied, "refuses the role"),
        ("3D000", StoreUnavailable, "no such database"),
        ("40001", StoreUnavailable, "changed by another process"),
        ("40P01", StoreUnavailable, "changed by another process"),
        ("42501", StoreDenied, "rights"),
        ("42P01", SchemaMismatch, "lacks a table"),
        ("53100", StoreUnavailable, "no space left"),
        ("53300", StoreUnavailable, "no connection left"),
        ("55P03", StoreUnavailable, "locked"),
        ("57014", StoreUnavailable, "too long"),
        ("57P03", StoreUnavailable, "starting up or shutting down"),
        ("XX001", StoreUnavailable, "damaged"),
    ],
)
def test_what_an_error_of_the_server_means(shared_url: str, sqlstate: str, kind: type[RegistryError], words: str) -> None:
    engine = engine_of(shared_url)

    def fail() -> None:
        with transaction(engine, write=True) as connection:
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'raised' USING ERRCODE = '{sqlstate}'; END $$"))

    with pytest.raises(kind) as caught:
        fail()
    assert type(caught.value) is kind
    assert words in checked(caught.value, shared_url)
    engine.dispose()


def test_two_that_wait_for_each_other(catalog: SqlCatalog, shared_url: str) -> None:
    engine = engine_of(with_options(shared_url, "-c deadlock_timeout=20ms"))
    names, both = ["a", "b"], threading.Barrier(2)
    for name in names:
        catalog.acquire_lease(name, "run-1", LONG_S)

    def lock(order: list[str]) -> str:
        try:
            with transaction(engine, write=True) as connection:
                for i, name in enumerate(order):
                    connection.execute(text(f"SELECT * FROM bcd_leases WHERE name = '{name}' FOR UPDATE"))
                    if i == 0:
                        both.wait(30)
        except StoreUnavailable as error:
            return checked(error, shared_url)
        return ""

    with ThreadPoolExecutor(2) as pool:
        messages = list(pool.map(lock, (names, names[::-1])))
    assert sorted("changed by another process" in message for message in messages) == [False, True]
    engine.dispose()


def test_a_connection_that_is_ended_by_the_server(catalog: SqlCatalog, shared_url: str) -> None:
    def end_own() -> None:
        with transaction(catalog._engine, write=False) as connection:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(StoreUnavailable) as caught:
        end_own()
    checked(caught.value, shared_url)
    assert catalog.list_pins() == set()


def test_a_server_that_is_killed_and_comes_back(stack: LocalStack, catalog: SqlCatalog, shared_url: str) -> None:
    key = catalog.put_environment(ENVIRONMENT)
    lease = taken(catalog.acquire_lease("c", "run-1", LONG_S))
    stack.postgres.kill()
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as caught:
            catalog.put_run(make_run("run-1"))
        assert "does not answer" in checked(caught.value, shared_url)
    stack.postgres.start()
    assert catalog.get_environment(key).as_json() == ENVIRONMENT.as_json()
    assert taken(catalog.renew_lease(lease, LONG_S)).token == lease.token


def test_a_text_that_cannot_be_stored(catalog: SqlCatalog, shared_url: str) -> None:
    for run_id in ("run \0", "run \udcff"):
        with pytest.raises(RegistryError) as caught:
            catalog.put_run(make_run(run_id))
        checked(caught.value, shared_url)
    assert catalog.list_runs() == []


def test_a_table_that_went_away(postgres_url: str) -> None:
    with SqlCatalog.open_url(postgres_url) as catalog:
        with transaction(catalog._engine, write=True) as connection:
            connection.execute(text("DROP TABLE bcd_pins"))
        with pytest.raises(SchemaMismatch) as caught:
            catalog.list_pins()
    assert "db upgrade" in caught.value.hint


def test_names_in_no_language_order(catalog: SqlCatalog) -> None:
    names = ["b", "a", "B", "é", "_", "a b", "ab"]
    for name in names:
        catalog.put_network(make_network(name, "1", ()))
    assert [network.name for network in catalog.list_networks()] == sorted(names)


def test_a_pin_and_a_deletion_at_once(catalog: SqlCatalog) -> None:
    def attempt(work: Callable[[str, str], None]) -> bool:
        try:
            work("ocr", "1")
        except RegistryError:
            return False
        return True

    for _ in range(10):
        catalog.put_network(make_network("ocr", "1", ()))
        with ThreadPoolExecutor(2) as pool:
            pinned, deleted = pool.map(attempt, (catalog.pin_network, catalog.delete_network))
        assert pinned != deleted
        assert bool(catalog.list_networks()) == bool(catalog.list_pins()) == pinned
        catalog.unpin_network("ocr", "1")


def test_a_write_behind_a_fence_ends_before_the_next_holder_begins(catalog: SqlCatalog) -> None:
    workload = make_workload("w")
    catalog.put_workloads([workload])
    record = make_record(workload, catalog.put_environment(ENVIRONMENT))
    catalog.add_records([record], [DIGEST])
    lease = taken(catalog.acquire_lease("c", "run-1", 0.0))
    with ThreadPoolExecutor(2) as pool:
        with transaction(catalog._engine, write=True) as holder:
            holder.execute(text("SELECT * FROM bcd_records FOR UPDATE"))
            writing = pool.submit(catalog.add_records, [record], [hex_of("second")], fences=[lease])
            wait_until_locked(catalog, 1)
            taking = pool.submit(catalog.acquire_lease, "c", "run-2", LONG_S)
            wait_until_locked(catalog, 2)
            assert not writing.done()
            assert not taking.done()
        writing.result(30)
        assert taken(taking.result(30)).holder == "run-2"
    assert catalog.list_records() == [(stored(record), hex_of("second"))]
    with pytest.raises(Conflict, match="went to run-2"):
        catalog.add_records([record], [DIGEST], fences=[lease])


def wait_until_locked(catalog: SqlCatalog, n: int) -> None:
    """Until so many wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with transaction(catalog._engine, write=False) as connection:
            if connection.execute(text(query)).scalar_one() == n:
                return
    raise AssertionError(f"never {n} that wait")


def test_finding_takes_a_constant_number_of_queries(catalog: SqlCatalog, shared_url: str) -> None:
    workloads = [make_workload(f"w{i}", cluster=f"c{i % 7}") for i in range(2000)]
    catalog.put_workloads(workloads)
    key = catalog.put_environment(ENVIRONMENT)
    records = [make_record(workload, key) for workload in workloads]
    catalog.add_records(records, [DIGEST] * len(records))
    catalog.add_refutations([make_refutation(record, workloads[0]) for record in records])
    keys, clusters, anchors = zip(*((w.key, w.cluster, w.anchor) for w in workloads), strict=True)
    statements: list[str] = []
    with SqlCatalog.open_url(shared_url) as watched:
        event.listen(watched._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2].split()[0]))
        assert len(watched.find_records(workloads=keys, clusters=clusters, anchors=anchors)) == 2000
        assert len(watched.find_records(refuted_in=clusters)) == 2000
        assert len(watched.find_relatives(clusters=clusters, anchors=anchors)) == 2000
        assert len(watched.get_workloads(keys)) == 2000
        assert len(watched.find_refutations(clusters)) == 2000
        assert len(watched.get_environments([key] * 2000)) == 1
    assert statements == ["SELECT"] * 6


def relations(plan: dict[str, Any], kind: str) -> set[str]:
    """Tables or indexes that nodes of the kind read."""
    below = set[str]().union(*(relations(child, kind) for child in plan.get("Plans", ())))
    return below | {str(plan.get("Index Name") or plan["Relation Name"])} if plan["Node Type"] == kind else below


SHAPE = Shape(20_000)


@pytest.fixture(scope="module")
def large_url(stack: LocalStack) -> str:
    name = f"large_{secrets.token_hex(6)}"
    with programs.connect(stack.identity) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    url = stack.identity.database_url(name)
    fill(url, SHAPE)
    return url


def test_a_lookup_in_a_large_catalog_uses_the_indexes(large_url: str) -> None:
    workloads = [SHAPE.workload(number) for number in range(0, SHAPE.n_workloads, SHAPE.n_workloads // 40)]
    keys = [workload.key for workload in workloads]
    clusters = [workload.cluster for workload in workloads[:4]]
    with SqlCatalog.open_url(large_url) as catalog:
        executed: list[tuple[str, Any]] = []
        event.listen(catalog._engine, "before_cursor_execute", lambda *arguments: executed.append(arguments[2:4]))
        assert len(catalog.find_records(workloads=keys, clusters=clusters, anchors=[workloads[0].anchor])) >= 10 * len(keys)
        assert catalog.find_records(workloads=keys, refuted_in=clusters)
        assert len(catalog.find_relatives(clusters=clusters, anchors=[workloads[0].anchor])) > 4 * 12
        catalog.find_refutations(clusters)
        catalog.get_workloads(keys)
        catalog.list_records(workload=keys[0][:10])
        catalog.set_record_states([], RecordState.CHECKED, "")
        for query, parameters in executed.copy():
            with transaction(catalog._engine, write=True) as connection:
                explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query}", parameters).scalar_one()
            (plan,) = json.loads(explained) if isinstance(explained, str) else explained
            read = relations(plan["Plan"], "Seq Scan")
            assert not read & {"bcd_records", "bcd_workloads", "bcd_refutations"}, (query, explained)


def test_the_benchmark_of_a_large_catalog(large_url: str) -> None:
    found = measure(large_url, SHAPE, n_lookups=2, n_publishes=1)
    assert (len(found.lookup_ms), found.n_queries) == (2, 6)
    assert len(list(lines(found))) == 5
