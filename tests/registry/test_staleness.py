from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd_registry.model import Environment
from bcd_registry.staleness import (
    FIELD_CLASSES,
    VERSION_FIELDS,
    FieldClass,
    OnVersion,
    StalenessPolicy,
    Verdict,
    compare,
    environment_key,
    judge,
)
from bcd_registry.testing.values import ENVIRONMENT, make_environment, make_record, make_workload

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 1.5]) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=4,
)
environments = st.dictionaries(st.sampled_from([*FIELD_CLASSES, "new"]), json_values, max_size=4).map(Environment)


def test_every_field_of_the_sample_has_a_class() -> None:
    assert set(ENVIRONMENT.fields) == set(FIELD_CLASSES)


@given(environments, environments)
def test_equal_keys_if_and_only_if_nothing_but_notes_differs(one: Environment, two: Environment) -> None:
    differences = [d for d in compare(one, two) if d.field_class is not FieldClass.NOTE]
    assert (environment_key(one) == environment_key(two)) == (not differences)


@given(environments, environments)
def test_comparing_is_symmetric_and_describes_on_one_line(one: Environment, two: Environment) -> None:
    there, back = compare(one, two), compare(two, one)
    assert [(d.field, d.then, d.now) for d in there] == [(d.field, d.now, d.then) for d in back]
    assert compare(one, one) == []
    assert all(d.describe().startswith(d.field) and "\n" not in d.describe() for d in there)


def test_hard_differences_come_first_and_unknown_fields_are_soft() -> None:
    now = make_environment(tvm="0.28.0", isa=["fma"], cpu_model="Xeon", new_field=1)
    assert [(d.field, d.field_class) for d in compare(ENVIRONMENT, now)] == [
        ("isa", "hard"),
        ("new_field", "soft"),
        ("tvm", "soft"),
        ("cpu_model", "note"),
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tvm": "0.27.0.post1"}, "tvm 0.27.0 then, 0.27.0.post1 now"),
        ({"cores": None}, "cores 2 then, none now"),
        ({"isa": ["avx512f", "fma", "sse4.2"]}, "isa avx2 only then, avx512f only now"),
        ({"isa": ["fma", "sse4.2"]}, "isa avx2 only then, nothing only now"),
        (
            {"target": {"kind": "llvm", "mcpu": "znver4"}},
            "target.mcpu znver3 then, znver4 now, target.num-cores 2 then, none now",
        ),
        ({"target": "llvm"}, 'target {"kind":"llvm","mcpu":"znver3","num-cores":2} then, llvm now'),
        ({"measurement": {"flush": False, "repeats": 3}}, "measurement.flush true then, false now"),
        ({"llvm": "x" * 100}, f"llvm 20.1.0 then, {'x' * 59}… now"),
    ],
)
def test_descriptions(changes: dict[str, Any], text: str) -> None:
    assert [d.describe() for d in compare(ENVIRONMENT, make_environment(**changes))] == [text]


CHANGES: dict[str, tuple[Any, Verdict]] = {
    "tvm": ("0.26.0", Verdict.SOFT),
    "tvm_ffi": ("0.2.0", Verdict.FRESH),
    "llvm": ("19", Verdict.SOFT),
    "target": ({"kind": "llvm", "mcpu": "znver4"}, Verdict.HARD),
    "isa": (["avx2", "fma"], Verdict.HARD),
    "cores": (4, Verdict.SOFT),
    "measurement": ({"repeats": 3, "flush": False}, Verdict.SOFT),
    "cpu_model": ("Xeon", Verdict.FRESH),
    "calibration_ms": (1.0, Verdict.FRESH),
    "load": (8.0, Verdict.FRESH),
    "some_new_field": (1, Verdict.SOFT),
}
"""Another value of every field, and what comes of it by default."""

BY_VERSION = {OnVersion.PRIOR: Verdict.SOFT, OnVersion.REFUSE: Verdict.HARD, OnVersion.ACCEPT: Verdict.FRESH}
DAY_S = 86400.0
RECORD = make_record(make_workload("a"), environment_key(ENVIRONMENT), created_at=1000.0)


def test_every_known_field_is_changed_in_turn() -> None:
    assert set(CHANGES) - {"some_new_field"} == set(FIELD_CLASSES)
    assert {name for name in CHANGES if name in VERSION_FIELDS} == set(VERSION_FIELDS)


@pytest.mark.parametrize("on_version", OnVersion)
@pytest.mark.parametrize("name", CHANGES)
def test_the_verdict_is_what_the_class_of_the_field_says(name: str, on_version: OnVersion) -> None:
    value, verdict = CHANGES[name]
    expected = BY_VERSION[on_version] if name in VERSION_FIELDS else verdict
    policy = StalenessPolicy(on_version=on_version)
    there = make_environment(**{name: value})
    for then, now in ((there, ENVIRONMENT), (ENVIRONMENT, there)):
        found = judge(RECORD, then, now, policy=policy, now_s=RECORD.created_at)
        assert found.verdict is expected
        assert [d.field for d in found.differences] == [name]
        assert found.reasons == (() if expected is Verdict.FRESH else (found.differences[0].describe(),))


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_that_was_not_known_then_counts_as_its_class(name: str) -> None:
    if name in FIELD_CLASSES:
        found = judge(RECORD, make_environment(**{name: None}), ENVIRONMENT, now_s=RECORD.created_at)
        assert found.verdict is CHANGES[name][1]


@pytest.mark.parametrize(
    ("age_s", "max_age_s", "reasons"),
    [
        (0.0, 90 * DAY_S, ()),
        (90 * DAY_S - 1.0, 90 * DAY_S, ()),
        (90 * DAY_S, 90 * DAY_S, ()),
        (90 * DAY_S + 1.0, 90 * DAY_S, ("measured 90 d ago, older than 90 d",)),
        (120.5 * DAY_S, 90 * DAY_S, ("measured 120.5 d ago, older than 90 d",)),
        (3 * 3600.0, 90 * 60.0, ("measured 3 h ago, older than 1.5 h",)),
        (150.0, 60.0, ("measured 2.5 min ago, older than 1 min",)),
        (2.0, 0.5, ("measured 2 s ago, older than 0.5 s",)),
        (-5.0, 0.0, ()),
        (1e9, None, ()),
    ],
)
def test_a_record_grows_old(age_s: float, max_age_s: float | None, reasons: tuple[str, ...]) -> None:
    policy = StalenessPolicy(max_age_s=max_age_s)
    found = judge(RECORD, ENVIRONMENT, ENVIRONMENT, policy=policy, now_s=RECORD.created_at + age_s)
    assert (found.verdict, found.reasons) == (Verdict.SOFT if reasons else Verdict.FRESH, reasons)


def test_a_record_that_drifted_is_a_prior_only() -> None:
    drifted = dataclasses.replace(RECORD, drift="12% slower than stored")
    found = judge(drifted, ENVIRONMENT, ENVIRONMENT, now_s=RECORD.created_at)
    assert (found.verdict, found.reasons) == (Verdict.SOFT, ("drifted: 12% slower than stored",))


def test_soft_reasons_add_up_and_a_hard_one_stands_alone() -> None:
    drifted = dataclasses.replace(RECORD, drift="slower")
    policy = StalenessPolicy(max_age_s=1.0)
    old = make_environment(tvm="0.26.0", cpu_model="Xeon")
    soft = judge(drifted, old, ENVIRONMENT, policy=policy, now_s=RECORD.created_at + 2.0)
    assert soft.verdict is Verdict.SOFT
    assert soft.reasons == ("tvm 0.26.0 then, 0.27.0 now", "measured 2 s ago, older than 1 s", "drifted: slower")
    assert [d.field for d in soft.differences] == ["tvm", "cpu_model"]
    elsewhere = make_environment(tvm="0.26.0", isa=["sve"])
    hard = judge(drifted, elsewhere, ENVIRONMENT, policy=policy, now_s=RECORD.created_at + 2.0)
    assert hard.verdict is Verdict.HARD
    assert [d.field for d in hard.differences] == ["isa", "tvm"]
    assert hard.reasons == ("isa sve only then, avx2+fma+sse4.2 only now",)


@given(environments, environments, st.sampled_from(OnVersion))
def test_a_verdict_follows_from_the_differences(one: Environment, two: Environment, on_version: OnVersion) -> None:
    found = judge(RECORD, one, two, policy=StalenessPolicy(on_version=on_version), now_s=RECORD.created_at)
    classes = {d.field_class for d in found.differences}
    expected = Verdict.HARD if "hard" in classes else Verdict.SOFT if "soft" in classes else Verdict.FRESH
    assert found.verdict is expected
    assert bool(found.reasons) == (expected is not Verdict.FRESH)
