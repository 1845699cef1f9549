"""What every `Catalog` says of records that are there already: selections, lineage, events. The names of the tests say it."""

# ruff: noqa: D102

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from bcd_registry.errors import ConfigError, NotFound
from bcd_registry.model import Event, EventKind, RecordState, Selection, TuningRecord, Workload
from bcd_registry.ports import Catalog

from .values import ENVIRONMENT, hex_of, make_environment, make_event, make_network, make_record, make_workload

DIGEST = hex_of("trace")
NOW_S = 10_000.0
_ALL = 1000


def stored(record: TuningRecord) -> TuningRecord:
    """The record as a catalog returns it: without its trace."""
    return dataclasses.replace(record, trace=None)


class HistoryContract:
    """The part of `CatalogContract` about records that are stored; it needs the same fixture."""

    @pytest.fixture
    def catalog(self) -> Catalog:
        """The empty catalog to test."""
        raise NotImplementedError

    @pytest.fixture
    def workload(self, catalog: Catalog) -> Workload:
        """A workload that is stored."""
        workload = make_workload("a")
        catalog.put_workloads([workload])
        return workload

    @pytest.fixture
    def environment(self, catalog: Catalog) -> str:
        """The key of an environment that is stored."""
        return catalog.put_environment(ENVIRONMENT)

    @pytest.fixture
    def family(self, catalog: Catalog, workload: Workload, environment: str) -> dict[str, TuningRecord]:
        """Records that are stored: a; b and c diffused from it; d from b; e from d; and x, which stands alone."""
        family: dict[str, TuningRecord] = {}
        for place, (name, parent) in enumerate((("a", ""), ("b", "a"), ("c", "a"), ("d", "b"), ("e", "d"), ("x", ""))):
            parent_id = family[parent].id if parent else hex_of("gone")
            family[name] = make_record(workload, environment, run_id=name, parent_id=parent_id, created_at=100.0 + place)
        catalog.add_records(list(family.values()), [DIGEST] * len(family))
        return family

    def test_a_record_keeps_the_cost_model_that_ranked_it(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        record = make_record(workload, environment, cost_model_id=hex_of("model"))
        catalog.add_records([record], [DIGEST])
        assert catalog.get_record(record.id)[0] == stored(record)

    def test_what_events_say_is_not_stored_with_a_record(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        record = make_record(workload, environment)
        catalog.add_records([dataclasses.replace(record, drift="slow", invalidated=hex_of("event"))], [DIGEST])
        assert catalog.get_record(record.id)[0] == stored(record)

    def test_a_record_that_is_added_again_keeps_its_parent_and_what_events_said(
        self, catalog: Catalog, family: dict[str, TuningRecord]
    ) -> None:
        taken_back, drifted = make_event(family["b"].id), make_event(family["b"].id, kind=EventKind.DRIFTED, id="d1")
        catalog.invalidate_records(taken_back)
        catalog.mark_drift({family["b"].id: "slower"}, drifted)
        again = family["b"].with_state(RecordState.PUBLISHED, parent_id=family["e"].id, trials=99)
        catalog.add_records([again], [DIGEST])
        expected = dataclasses.replace(again, parent_id=family["a"].id, drift="slower", invalidated=taken_back.id)
        assert catalog.get_record(again.id)[0] == stored(expected)

    def test_each_criterion_selects(self, catalog: Catalog) -> None:
        here, there = catalog.put_environment(ENVIRONMENT), catalog.put_environment(make_environment(tvm="0.26.0"))
        one, two, three = (make_workload(name, cluster=cluster) for name, cluster in (("x", "c"), ("y", "c"), ("z", "d")))
        catalog.put_workloads([one, two, three])
        catalog.put_network(make_network("ocr", "1", (one,)))
        catalog.put_network(make_network("ocr", "2", (two, three)))
        records = [
            make_record(one, here, run_id="0", created_at=NOW_S - 300.0),
            make_record(two, here, run_id="1", created_at=NOW_S - 200.0, state=RecordState.QUARANTINED),
            make_record(two, there, run_id="2", created_at=NOW_S - 100.0),
            make_record(three, there, run_id="3", created_at=NOW_S),
        ]
        catalog.add_records(records, [DIGEST] * 4)
        catalog.invalidate_records(make_event(records[2].id))

        def chosen(selection: Selection) -> str:
            return "".join(record.run_id for record, _ in catalog.select_records(selection, now_s=NOW_S))

        assert chosen(Selection(record=records[1].id)) == chosen(Selection(record=records[1].id[:16])) == "1"
        assert chosen(Selection(record=records[1].id[:16].upper())) == "1"
        assert chosen(Selection(workload=two.key[:12])) == "21"
        assert chosen(Selection(cluster=one.cluster[:12])) == "210"
        assert chosen(Selection(environment=there[:12])) == "32"
        assert chosen(Selection(network=("ocr", "1"))) == "0"
        assert chosen(Selection(network=("ocr", "2"))) == "321"
        assert chosen(Selection(network=("ocr", None))) == "3210"
        assert chosen(Selection(network=("det", None))) == chosen(Selection(network=("ocr", "3"))) == ""
        assert chosen(Selection(older_than_s=0.0)) == "210"
        assert chosen(Selection(older_than_s=100.0)) == "10"
        assert chosen(Selection(older_than_s=99.0)) == "210"
        assert chosen(Selection(record="none")) == chosen(Selection(workload="%")) == chosen(Selection(cluster="x'")) == ""

    def test_a_selection_meets_all_criteria(
        self, catalog: Catalog, family: dict[str, TuningRecord], workload: Workload
    ) -> None:
        everything = Selection(workload=workload.key, cluster=workload.cluster, environment=family["a"].environment_key)
        assert len(catalog.select_records(everything, now_s=NOW_S)) == len(family)
        narrowed = dataclasses.replace(everything, record=family["c"].id, older_than_s=1.0)
        assert catalog.select_records(narrowed, now_s=NOW_S) == [(stored(family["c"]), DIGEST)]
        for change in ({"workload": hex_of("none")}, {"older_than_s": NOW_S}, {"network": ("ocr", None)}):
            assert catalog.select_records(dataclasses.replace(narrowed, **change), now_s=NOW_S) == []

    def test_descendants_of_all_generations(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        def found(*names: str) -> str:
            return "".join(record.run_id for record in catalog.find_descendants([family[name].id for name in names]))

        assert found("a") == "bcde"
        assert found("b") == "de"
        assert found("a", "b") == found("b", "a", "x") == "cde"
        assert found("e") == found("x") == found() == ""
        assert catalog.find_descendants([hex_of("none")]) == []
        assert catalog.find_descendants([hex_of("gone")])[0] == stored(family["a"])
        catalog.invalidate_records(make_event(family["d"].id))
        assert found("b") == "de"

    def test_ancestors_nearest_first(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        expected = [stored(family[name]) for name in "dba"]
        assert catalog.find_ancestors(family["e"].id) == expected
        assert catalog.find_ancestors(family["a"].id) == catalog.find_ancestors(hex_of("none")) == []
        catalog.remove_records([family["b"].id])
        assert catalog.find_ancestors(family["e"].id) == expected[:1]

    def test_lineage_ends_even_where_it_runs_in_a_circle(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        names = ("p", "q", "r")
        bare = {name: make_record(workload, environment, run_id=name) for name in names}
        circle = [dataclasses.replace(bare[n], parent_id=bare[names[i - 1]].id) for i, n in enumerate(names)]
        own_parent = make_record(workload, environment, run_id="s")
        own_parent = dataclasses.replace(own_parent, parent_id=own_parent.id)
        catalog.add_records([*circle, own_parent], [DIGEST] * 4)
        assert {record.run_id for record in catalog.find_descendants([bare["p"].id])} == {"q", "r"}
        assert [record.run_id for record in catalog.find_ancestors(bare["p"].id)] == ["r", "q"]
        assert catalog.find_descendants([own_parent.id]) == catalog.find_ancestors(own_parent.id) == []

    def test_an_invalidated_record_is_found_no_more(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        event = make_event(family["a"].id, family["d"].id)
        workload = family["a"].workload_key
        catalog.invalidate_records(event)
        found = {record.run_id for record, _ in catalog.find_records(workloads=[workload], per_workload=_ALL)}
        assert found == {"b", "c", "e", "x"}
        assert catalog.get_record(family["a"].id)[0] == stored(dataclasses.replace(family["a"], invalidated=event.id))
        assert len(catalog.list_records()) == len(family)
        assert catalog.count_rows()["invalidated"] == 2
        assert catalog.list_events() == [event]

    def test_an_unknown_record_in_an_event_changes_nothing(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        ids = (family["a"].id, hex_of("none"))
        for kind, write in (
            (EventKind.INVALIDATED, catalog.invalidate_records),
            (EventKind.STEADY, catalog.clear_drift),
            (EventKind.DRIFTED, lambda event: catalog.mark_drift(dict.fromkeys(ids, "slow"), event)),
        ):
            with pytest.raises(NotFound, match=hex_of("none")[:12]):
                write(make_event(*ids, kind=kind))
        assert catalog.list_events() == []
        assert catalog.get_record(family["a"].id)[0] == stored(family["a"])

    def test_an_event_that_is_stored_again_is_a_success(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        event = make_event(family["a"].id)
        for _ in range(2):
            catalog.invalidate_records(event)
        assert catalog.list_events() == [event]

    def test_restoring_gives_exactly_the_state_before(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        ids = [record.id for record in family.values()]
        catalog.set_record_states(ids[:2], RecordState.PUBLISHED, "")
        catalog.set_record_states(ids[2:3], RecordState.QUARANTINED, "wrong")
        catalog.mark_drift({ids[0]: "slower"}, make_event(ids[0], kind=EventKind.DRIFTED, id="d0", created_at=1.0))
        before = catalog.list_records()
        found = catalog.find_records(workloads=[family["a"].workload_key])
        catalog.invalidate_records(make_event(*ids, created_at=2.0))
        assert catalog.find_records(workloads=[family["a"].workload_key]) == []
        restoring = make_event(*ids, kind=EventKind.RESTORED, id="e1", created_at=3.0)
        assert catalog.restore_records(restoring) == tuple(sorted(ids))
        assert catalog.list_records() == before
        assert catalog.find_records(workloads=[family["a"].workload_key]) == found
        assert [event.kind for event in catalog.list_events()] == ["restored", "invalidated", "drifted"]

    def test_what_several_events_took_back_stays_so_until_each_is_undone(
        self, catalog: Catalog, family: dict[str, TuningRecord]
    ) -> None:
        a, b, c = (family[name].id for name in "abc")
        first, second = make_event(a, b, id="e1", created_at=1.0), make_event(b, c, id="e2", created_at=2.0)
        catalog.invalidate_records(first)
        catalog.invalidate_records(second)

        def held() -> list[str]:
            return [catalog.get_record(i)[0].invalidated for i in (a, b, c)]

        def undo(event: Event, name: str) -> tuple[str, ...]:
            restoring = make_event(*event.records, kind=EventKind.RESTORED, id=name, created_at=3.0)
            return catalog.restore_records(restoring, undone=event.id)

        assert held() == ["e1", "e2", "e2"]
        assert undo(second, "e3") == second.records
        assert held() == ["e1", "e1", ""]
        assert undo(second, "e4") == ()
        assert undo(first, "e5") == first.records
        assert held() == ["", "", ""]
        assert {event.id for event in catalog.list_events()} == {"e1", "e2", "e3", "e5"}

    def test_restoring_records_undoes_all_that_hold_them(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        a, b, c = (family[name].id for name in "abc")
        catalog.invalidate_records(make_event(a, b, id="e1", created_at=1.0))
        catalog.invalidate_records(make_event(b, c, id="e2", created_at=2.0))
        catalog.remove_records([c])
        restoring = make_event(b, c, family["x"].id, hex_of("none"), kind=EventKind.RESTORED, id="e3", created_at=3.0)
        assert catalog.restore_records(restoring) == (b,)
        assert catalog.get_event("e3").records == (b,)
        assert [catalog.get_record(i)[0].invalidated for i in (a, b)] == ["e1", ""]
        assert catalog.restore_records(dataclasses.replace(restoring, id="e4")) == ()
        catalog.invalidate_records(make_event(b, id="e5", created_at=5.0))
        assert catalog.get_record(b)[0].invalidated == "e5"

    def test_drift_comes_and_goes(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        a, b = family["a"].id, family["b"].id
        marked = make_event(a, b, kind=EventKind.DRIFTED, id="e1", created_at=1.0)
        catalog.mark_drift({a: "20% slower", b: "10% slower"}, marked)
        again = make_event(a, kind=EventKind.DRIFTED, id="e2", created_at=2.0)
        catalog.mark_drift({a: "30% slower"}, again)
        assert [catalog.get_record(i)[0].drift for i in (a, b, family["c"].id)] == ["30% slower", "10% slower", ""]
        found = {record.run_id: record.drift for record, _ in catalog.find_records(workloads=[family["a"].workload_key])}
        assert found == {"a": "30% slower", "b": "10% slower", "c": "", "d": "", "e": "", "x": ""}
        steady = make_event(a, family["c"].id, kind=EventKind.STEADY, id="e3", created_at=3.0)
        catalog.clear_drift(steady)
        assert [catalog.get_record(i)[0].drift for i in (a, b)] == ["", "10% slower"]
        assert catalog.list_events() == [steady, again, marked]

    def test_a_drift_without_its_own_reason_is_refused(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        a, b = family["a"].id, family["b"].id
        event = make_event(a, b, kind=EventKind.DRIFTED)
        for reasons in ({a: "slower"}, {a: "slower", b: ""}, {a: "slower", b: "slower", family["c"].id: "slower"}):
            with pytest.raises(ConfigError):
                catalog.mark_drift(reasons, event)
        assert catalog.list_events() == []

    def test_events_are_listed_newest_first_and_by_record(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        a, b = family["a"].id, family["b"].id
        selection = {"network": ["ocr", None], "older_than_s": 5.0}
        one = make_event(a, id="ab1", created_at=1.0, selection=selection, reason="a bad driver; 'quoted'")
        two = make_event(a, b, id="ab2", created_at=2.0)
        for event in (one, two):
            catalog.invalidate_records(event)
        assert catalog.list_events() == [two, one]
        assert catalog.list_events(limit=1) == [two]
        assert catalog.list_events(record=b) == catalog.list_events(record=b[:12]) == [two]
        assert catalog.list_events(record=a) == [two, one]
        assert catalog.list_events(record=hex_of("none")) == catalog.list_events(record="%") == []
        assert catalog.get_event("ab1") == catalog.get_event("AB1") == one
        with pytest.raises(NotFound, match="more than one"):
            catalog.get_event("ab")
        for unknown in ("c", "none", "ab12"):
            with pytest.raises(NotFound):
                catalog.get_event(unknown)

    def test_an_event_outlives_its_records(self, catalog: Catalog, family: dict[str, TuningRecord]) -> None:
        event = make_event(family["a"].id)
        catalog.invalidate_records(event)
        catalog.remove_records([family["a"].id])
        assert catalog.list_events(record=family["a"].id) == [event]

    def test_invalidated_records_neither_beat_nor_are_beaten(
        self, catalog: Catalog, workload: Workload, environment: str
    ) -> None:
        records = [make_record(workload, environment, run_id=str(ms), run_times_s=(ms * 1e-3,)) for ms in (1, 2, 3, 4)]
        catalog.add_records(records, [DIGEST] * 4)
        assert set(catalog.beaten_records(2)) == {records[2].id, records[3].id}
        catalog.invalidate_records(make_event(records[0].id, records[3].id, id="e1"))
        assert catalog.beaten_records(2) == []
        assert catalog.beaten_records(1) == [records[2].id]
        catalog.put_network(make_network("ocr", "1", (workload,)))
        catalog.pin_network("ocr", "1")
        assert catalog.beaten_records(1) == []
        catalog.restore_records(make_event(records[0].id, records[3].id, kind=EventKind.RESTORED, id="e2"))
        catalog.unpin_network("ocr", "1")
        assert set(catalog.beaten_records(2)) == {records[2].id, records[3].id}

    def test_what_lookups_leave_out_is_found(self, catalog: Catalog, environment: str) -> None:
        own, sibling, other = (make_workload(name, cluster=cluster) for name, cluster in (("x", "c"), ("y", "c"), ("z", "d")))
        catalog.put_workloads([own, sibling, other])
        records = [make_record(w, environment, run_id=f"{w.key[:4]} {i}") for w in (own, sibling, other) for i in range(3)]
        dated = [dataclasses.replace(record, created_at=float(i)) for i, record in enumerate(records)]
        catalog.add_records(dated, [DIGEST] * 9)
        catalog.set_record_states([dated[i].id for i in (0, 3)], RecordState.QUARANTINED, "wrong")
        catalog.invalidate_records(make_event(*(dated[i].id for i in (0, 1, 7))))

        def found(**by: list[str]) -> list[float]:
            return [record.created_at for record in catalog.find_left_out(**by)]  # type: ignore[arg-type]

        assert found(workloads=[own.key]) == [1.0, 0.0]
        assert found(clusters=[own.cluster]) == [3.0, 1.0, 0.0]
        assert found(workloads=[other.key], clusters=[sibling.cluster]) == [7.0, 3.0, 1.0, 0.0]
        assert found() == []
        assert len(catalog.find_left_out(clusters=[own.cluster], limit=2)) == 2

    def test_workloads_by_what_they_compute(self, catalog: Catalog, environment: str) -> None:
        ops = ("conv2d", "conv2d", "conv2d", "conv2d", "dense", "pool")
        workloads = [dataclasses.replace(make_workload(f"w{i}"), op=op) for i, op in enumerate(ops)]
        catalog.put_workloads(workloads)
        records = [make_record(w, environment) for w in workloads[:5]]
        catalog.add_records(records, [DIGEST] * 5)
        catalog.set_record_states([records[0].id], RecordState.QUARANTINED, "wrong")
        catalog.invalidate_records(make_event(records[1].id))
        usable = sorted(workloads[2:4], key=lambda w: w.key)
        without = [dataclasses.replace(w, description="") for w in (*usable, workloads[4])]
        assert catalog.find_workloads(["conv2d", "dense", "pool", "none"]) == without
        assert catalog.find_workloads(["dense", "conv2d"], limit_per_op=1) == [without[0], without[2]]
        assert catalog.find_workloads([]) == []

    def test_a_reader_sees_all_of_an_invalidation_or_nothing(
        self, catalog: Catalog, workload: Workload, environment: str
    ) -> None:
        records = [make_record(workload, environment, run_id=f"run-{i}") for i in range(40)]
        catalog.add_records(records, [DIGEST] * 40)
        ids = tuple(sorted(record.id for record in records))

        def write(turn: int) -> None:
            taken_back = make_event(*ids, id=f"a{turn:02}", created_at=float(turn))
            catalog.invalidate_records(taken_back)
            restoring = make_event(*ids, kind=EventKind.RESTORED, id=f"b{turn:02}", created_at=float(turn))
            catalog.restore_records(restoring, undone=taken_back.id)

        def read() -> set[int]:
            return {len(catalog.find_records(workloads=[workload.key], per_workload=_ALL)) for _ in range(5)}

        with ThreadPoolExecutor(3) as pool:
            for turn in range(12):
                readers = [pool.submit(read) for _ in range(2)]
                pool.submit(write, turn).result()
                assert set().union(*(reader.result() for reader in readers)) <= {0, 40}
        assert len(catalog.find_records(workloads=[workload.key], per_workload=_ALL)) == 40

    @pytest.mark.parametrize(
        "criteria",
        [{}, {"record": ""}, {"workload": ""}, {"cluster": ""}, {"environment": ""}]
        + [{"older_than_s": age} for age in (-1.0, math.nan)],
    )
    def test_a_selection_of_everything_or_nothing_is_refused(self, criteria: dict[str, object]) -> None:
        with pytest.raises(ConfigError) as caught:
            Selection(**criteria)  # type: ignore[arg-type]
        assert caught.value.hint
