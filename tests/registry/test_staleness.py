from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd_registry.model import Environment
from bcd_registry.staleness import FIELD_CLASSES, FieldClass, compare, environment_key
from bcd_registry.testing.values import ENVIRONMENT, make_environment

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
