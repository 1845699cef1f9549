from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bcd_registry.evidence import gather
from bcd_registry.explain import Cause, Evidence, Explanation, Relation, explain
from bcd_registry.lookup import Known, grade_workloads
from bcd_registry.model import Environment, Event, EventKind, Grade, RecordState, Refutation, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.staleness import FIELD_CLASSES, OnVersion, StalenessPolicy, environment_key
from bcd_registry.testing.values import ENVIRONMENT, make_environment, make_record, make_refutation, make_workload

OWN = make_workload("own", cluster="c", anchor="a", extents=(16, 64))
NEAR = make_workload("near", cluster="c", anchor="a", extents=(16, 128))
FAR = make_workload("far", cluster="c", anchor="a", extents=(64, 256))
COUSIN = make_workload("cousin", cluster="d", anchor="a", extents=(16, 64, 3))
STRANGER = make_workload("stranger")
WORKLOADS = {w.key: w for w in (OWN, NEAR, FAR, COUSIN, STRANGER)}
OTHER_ISA = make_environment(isa=["sve"])
OLD_TVM = make_environment(tvm="0.26.0")
ENVIRONMENTS = {environment_key(e): e for e in (ENVIRONMENT, OTHER_ISA, OLD_TVM)}
EVENT = Event("e" * 32, EventKind.INVALIDATED, "the fan had stopped", {}, ())
DAY_S = 86400.0
numbers = itertools.count()


def record(workload: Workload, ms: float = 1.0, environment: Environment = ENVIRONMENT, **changes: Any) -> TuningRecord:
    """A published record with a schedule of its own."""
    decisions = (("SampleCategorical", next(numbers)),)
    fields = {"state": RecordState.PUBLISHED, "decisions": decisions, "run_times_s": (ms * 1e-3,), **changes}
    return make_record(workload, environment_key(environment), **fields)


def explained(
    *records: TuningRecord,
    asked: int = 32,
    left_out: Sequence[TuningRecord] = (),
    refutations: Sequence[Refutation] = (),
    alike: Sequence[Workload] = (),
    environments: Mapping[str, Environment] = ENVIRONMENTS,
    policy: StalenessPolicy = StalenessPolicy(),  # noqa: B008 - frozen
    now_s: float = 1000.0,
) -> Explanation:
    known = Known(records, WORKLOADS, environments, refutations)
    matches = grade_workloads([OWN], known, ENVIRONMENT, {OWN.key: asked}, policy=policy, now_s=now_s)
    evidence = Evidence(known, left_out, {EVENT.id: EVENT}, alike)
    (found,) = explain(matches, evidence, ENVIRONMENT, {OWN.key: asked}, policy=policy, now_s=now_s)
    assert (found.grade, found.reason) == (matches[0].grade, matches[0].reason)
    json.dumps(found.as_json(), allow_nan=False)
    return found


def fields(found: Explanation) -> list[tuple[str, str]]:
    assert found.closest is not None
    return [(d["about"], d["field"]) for d in found.closest.as_json()["differences"]]


def test_what_is_exact_needs_no_explanation() -> None:
    own = record(OWN)
    found = explained(own, record(OWN, environment=OTHER_ISA))
    assert (found.grade, found.record, found.closest, found.left_out) == (Grade.EXACT, own, None, ())


@pytest.mark.parametrize(
    ("changes", "policy", "expected", "phrase"),
    [
        ({"depth": 16}, {}, ("record", "depth"), "searched for 16 trials, 32 asked"),
        ({"depth": 0, "trials": 12}, {}, ("record", "depth"), "search was cut short after 12 trials, 32 asked"),
        ({"state": RecordState.MEASURED}, {}, ("record", "state"), "only measured, not published"),
        ({"drift": "1.4 times slower"}, {}, ("record", "drift"), "drifted: 1.4 times slower"),
        ({"created_at": 0.5 * DAY_S}, {"max_age_s": DAY_S}, ("record", "age"), "measured 1.5 d ago, older than 1 d"),
        ({"environment": OLD_TVM}, {}, ("environment", "tvm"), "tvm 0.26.0 then, 0.27.0 now"),
    ],
)
def test_what_keeps_its_own_record_from_being_served(
    changes: dict[str, Any], policy: dict[str, Any], expected: tuple[str, str], phrase: str
) -> None:
    own = record(OWN, **{"created_at": 2 * DAY_S, **changes})
    found = explained(record(NEAR, created_at=2 * DAY_S), own, policy=StalenessPolicy(**policy), now_s=2 * DAY_S)
    assert found.grade is Grade.STALE
    assert found.closest is not None
    assert (found.closest.relation, found.closest.record, found.closest.distance) == (Relation.WORKLOAD, own, 0.0)
    assert fields(found) == [expected]
    assert found.closest.phrases() == [phrase]
    assert found.left_out == ()


def test_every_field_of_another_environment_is_named() -> None:
    other = make_environment(
        tvm="0.26.0",
        tvm_ffi="0.1.13",
        llvm="19.0.0",
        target={"kind": "llvm", "mcpu": "znver4", "num-cores": 2},
        isa=["avx512f"],
        cores=4,
        measurement={"repeats": 5, "flush": True},
        cpu_model="Xeon",
        calibration_ms=9.0,
        load=3.0,
    )
    known = {environment_key(other): other}
    found = explained(record(OWN, environment=other), environments=known)
    assert {name for about, name in fields(found) if about == "environment"} == set(FIELD_CLASSES)
    classes = {d["field"]: d["class"] for d in found.closest.as_json()["differences"]}  # type: ignore[union-attr]
    assert classes == {**FIELD_CLASSES}
    assert not any("cpu_model" in phrase for phrase in found.closest.phrases())  # type: ignore[union-attr]
    assert any("cpu_model" in phrase for phrase in found.closest.phrases(brief=False))  # type: ignore[union-attr]


def test_its_own_record_of_another_machine_is_closest_and_left_out() -> None:
    own, near = record(OWN, environment=OTHER_ISA), record(NEAR)
    found = explained(near, own)
    assert found.grade is Grade.CLUSTER
    assert found.closest is not None
    assert (found.closest.record, found.closest.relation) == (own, Relation.WORKLOAD)
    (left,) = found.left_out
    assert (left.cause, left.relation, left.records) == (Cause.ENVIRONMENT, Relation.WORKLOAD, (own.id,))
    assert left.describe().startswith("1 record of its own, environment: isa sve only then")


def test_a_version_is_a_reason_as_the_policy_says() -> None:
    own = record(OWN, environment=OLD_TVM)
    refused = explained(own, policy=StalenessPolicy(on_version=OnVersion.REFUSE))
    assert refused.grade is Grade.COLD
    assert [item.cause for item in refused.left_out] == [Cause.ENVIRONMENT]
    assert explained(own, policy=StalenessPolicy(on_version=OnVersion.ACCEPT)).grade is Grade.EXACT


@pytest.mark.parametrize(
    ("changes", "cause", "text"),
    [
        (
            {"state": RecordState.QUARANTINED, "reason": "a trace blob is not JSON"},
            Cause.DAMAGED,
            "1 record of its own, damaged: a trace blob is not JSON",
        ),
        (
            {"state": RecordState.QUARANTINED, "reason": "its output differs"},
            Cause.QUARANTINED,
            "quarantined: its output differs",
        ),
        ({"invalidated": EVENT.id}, Cause.INVALIDATED, "invalidated: the fan had stopped"),
        ({"invalidated": "f" * 32}, Cause.INVALIDATED, "invalidated: by event ffffffffffff"),
    ],
)
def test_what_was_taken_out_of_use_is_named_with_its_reason(changes: dict[str, Any], cause: Cause, text: str) -> None:
    own = record(OWN, **changes)
    found = explained(record(NEAR), left_out=[own])
    assert found.closest is not None
    assert (found.grade, found.closest.record) == (Grade.CLUSTER, own)
    assert fields(found) == [("record", str(cause))]
    assert [(item.cause, item.records) for item in found.left_out] == [(cause, (own.id,))]
    assert text in found.left_out[0].describe()


def test_what_can_be_used_is_closer_than_what_was_taken_back() -> None:
    own, back = record(OWN, depth=8), record(OWN, invalidated=EVENT.id)
    found = explained(own, left_out=[back])
    assert found.closest is not None
    assert found.closest.record == own
    assert [item.records for item in found.left_out] == [(back.id,)]


def test_the_nearest_sibling_is_closest_with_what_differs() -> None:
    near, far = record(NEAR, 2.0, state=RecordState.MEASURED), record(FAR, 1.0)
    found = explained(far, near, record(COUSIN))
    assert found.closest is not None
    assert (found.closest.relation, found.closest.record) == (Relation.CLUSTER, near)
    assert found.closest.distance == pytest.approx(math.sqrt(0.5))
    assert fields(found) == [("record", "state"), ("workload", "structure")]
    assert found.closest.phrases() == ["name: structure near there, own here"]
    assert "only measured, not published" in found.closest.phrases(brief=False)


def test_a_refuted_sibling_says_by_whom() -> None:
    near = record(NEAR)
    refutation = make_refutation(near, OWN, ratio=1.5)
    found = explained(near, refutations=[refutation])
    assert found.grade is Grade.COLD
    assert found.closest is not None
    assert found.closest.relation is Relation.CLUSTER
    assert ("record", "refuted") in fields(found)
    assert [(i.cause, i.describe()) for i in found.left_out] == [
        (Cause.REFUTED, "1 record of its cluster, refuted by run ab12cd34: what it gave was 1.50 times slower")
    ]
    infinite = explained(near, refutations=[dataclasses.replace(refutation, ratio=math.inf)])
    assert infinite.left_out[0].reason.endswith("what it gave was nothing that ran")


def test_the_main_block_then_the_operator() -> None:
    found = explained(record(COUSIN), record(STRANGER), alike=[STRANGER])
    assert found.closest is not None
    assert (found.closest.relation, found.closest.workload) == (Relation.ANCHOR, COUSIN)
    alone = explained(record(STRANGER), alike=[STRANGER])
    assert alone.closest is not None
    assert (alone.grade, alone.closest.relation, alone.closest.workload) == (Grade.COLD, Relation.OP, STRANGER)
    assert alone.closest.record is None
    assert alone.closest.as_json()["distance"] is None


def test_nothing_is_like_it() -> None:
    found = explained(record(STRANGER))
    assert (found.grade, found.closest, found.left_out) == (Grade.COLD, None, ())
    other_op = dataclasses.replace(STRANGER, op="softmax")
    assert explained(alike=[other_op]).closest is None


def test_the_registry_gathers_what_was_left_out_and_what_is_alike(registry: Registry) -> None:
    key, elsewhere = registry.put_environment(ENVIRONMENT), registry.put_environment(OTHER_ISA)
    registry.put_workloads([OWN, NEAR, STRANGER])
    own, near = record(OWN), record(NEAR, environment=OTHER_ISA)
    stranger = record(STRANGER)
    registry.publish([dataclasses.replace(r, state=RecordState.CHECKED) for r in (own, near, stranger)])
    assert (own.environment_key, near.environment_key) == (key, elsewhere)
    event = registry.invalidate([own.id], "the fan had stopped")
    registry.quarantine([near.id], "its output differs")
    evidence = gather(registry, [OWN])
    matches = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
    (found,) = explain(matches, evidence, ENVIRONMENT, {OWN.key: 32})
    assert evidence.events == {event.id: event}
    assert [(i.cause, i.reason) for i in found.left_out] == [
        (Cause.INVALIDATED, "the fan had stopped"),
        (Cause.QUARANTINED, "its output differs"),
    ]
    lone = make_workload("lone")
    evidence = gather(registry, [lone])
    assert [w.key for w in evidence.alike] == [STRANGER.key]
    (found,) = explain(registry.lookup([lone], ENVIRONMENT, {}), evidence, ENVIRONMENT, {})
    assert found.closest is not None
    assert (found.closest.relation, found.closest.workload) == (Relation.OP, STRANGER)
    assert gather(registry, []).known.records == ()
