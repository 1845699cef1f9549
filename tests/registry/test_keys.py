"""Keys are a format: a key that moves makes every record of every user unknown."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd_registry.blobs.digests import blob_digest
from bcd_registry.catalog.rows import cost_model_row
from bcd_registry.model import RecordState, canonical_json, digest_of
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_environment, make_record, make_snapshot, make_workload

GOLDEN_ENVIRONMENT = "b2505089b51871977d120ce5ff4c2923d495cc4121bd010902f5eca547ee9ccb"
GOLDEN_RECORD = "51b8fbba22feaa22a578e939178fdeee0ab7ea3a71477b3d7a71e3e1da53e92d"


def test_golden_keys() -> None:
    assert digest_of("a", b"b") == "3c9d591045bc8876f9d0399bbfb05c6a412096e906f73278f98406cd5dca86df"
    assert blob_digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert environment_key(ENVIRONMENT) == GOLDEN_ENVIRONMENT
    assert make_record(make_workload("a"), hex_of("environment")).id == GOLDEN_RECORD


def test_another_process_makes_the_same_keys() -> None:
    program = (
        "from bcd_registry.staleness import environment_key\n"
        "from bcd_registry.testing.values import *\n"
        "print(environment_key(ENVIRONMENT), make_record(make_workload('a'), hex_of('environment')).id)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [GOLDEN_ENVIRONMENT, GOLDEN_RECORD]


def test_canonical_json_has_one_spelling() -> None:
    assert canonical_json({"b": (1, 2.5), "a": "é"}) == '{"a":"\\u00e9","b":[1,2.5]}'
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(math.nan)


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_no_two_lists_of_parts_collide(one: list[str], two: list[str]) -> None:
    assert (digest_of(*one) == digest_of(*two)) == (one == two)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tvm", "0.28.0"),
        ("llvm", "21.0.0"),
        ("target", {"kind": "llvm", "mcpu": "znver4", "num-cores": 2}),
        ("isa", ["avx2", "fma"]),
        ("cores", 4),
        ("measurement", {"repeats": 5, "flush": True}),
        ("some_new_field", 1),
        ("cores", None),
    ],
)
def test_a_hard_or_soft_field_moves_the_environment_key(name: str, value: Any) -> None:
    assert environment_key(make_environment(**{name: value})) != GOLDEN_ENVIRONMENT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tvm_ffi", "0.2.0"),
        ("cpu_model", "Xeon"),
        ("calibration_ms", 1.0),
        ("load", 9.0),
        ("cpu_model", None),
        ("isa", ["sse4.2", "fma", "avx2"]),
        ("target", {"num-cores": 2, "mcpu": "znver3", "kind": "llvm"}),
    ],
)
def test_notes_and_order_do_not(name: str, value: Any) -> None:
    assert environment_key(make_environment(**{name: value})) == GOLDEN_ENVIRONMENT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workload_key", hex_of("other")),
        ("environment_key", hex_of("other")),
        ("sketch", hex_of("other")),
        ("decisions", (("SamplePerfectTile", (8, 4)), ("SampleCategorical", 1))),
        ("run_id", "run-2"),
    ],
)
def test_what_moves_the_id_of_a_record(name: str, value: Any) -> None:
    assert make_record(make_workload("a"), hex_of("environment"), **{name: value}).id != GOLDEN_RECORD


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", RecordState.PUBLISHED),
        ("run_times_s", (1.0,)),
        ("trials", 1),
        ("depth", 1),
        ("reason", "x"),
        ("trace", None),
        ("cost_model_id", hex_of("model")),
        ("drift", "slower"),
        ("invalidated", hex_of("event")),
    ],
)
def test_what_does_not(name: str, value: Any) -> None:
    assert (
        make_record(make_workload("a"), hex_of("environment")).with_state(**{"state": RecordState.MEASURED, name: value}).id
        == GOLDEN_RECORD
    )


def test_a_cost_model_is_named_as_the_catalog_names_it() -> None:
    snapshot = make_snapshot()
    row = cost_model_row(snapshot, blob_digest(snapshot.booster), blob_digest(snapshot.samples))
    assert snapshot.id == row["id"]
    others: dict[str, Any] = {"target": "{}", "booster": b"x", "samples": b"x", "metadata": {}}
    for name, value in others.items():
        assert make_snapshot(**{name: value}).id != snapshot.id
    assert make_snapshot(created_at=1.0).id == snapshot.id
