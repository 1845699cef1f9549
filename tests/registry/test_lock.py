"""Locks as text, what changed between two, and what a lock takes from the registry."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.errors import ConfigError, FrozenMismatch
from bcd_registry.frozen import FrozenLookup, frozen_records, load_lock
from bcd_registry.lock import FORMAT, Lock, compare_locks, make_lock, read_lock, trace_digest, write_lock
from bcd_registry.model import Environment, Grade, Match, NetworkVersion, RecordState, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_environment, make_network, make_record, make_workload

CONV = dataclasses.replace(make_workload("conv"), op="conv2d+relu")
DENSE = dataclasses.replace(make_workload("dense"), op="matmul")
UNTUNED = dataclasses.replace(make_workload("untuned"), op="softmax")
NETWORK = make_network("net", "v2", (CONV, DENSE, UNTUNED))
KEY = environment_key(ENVIRONMENT)


def published(workload: Workload, key: str, n: int = 0, **changes: Any) -> TuningRecord:
    """A checked record with a trace, decisions and a latency (1 + n ms) of its own."""
    fields: dict[str, Any] = {
        "trace": [workload.key, n],
        "decisions": (("SampleCategorical", n),),
        "run_times_s": ((n + 1) * 1e-3,),
        "state": RecordState.CHECKED,
    }
    return make_record(workload, key, **{**fields, **changes})


def fill(registry: Registry, environment: Environment = ENVIRONMENT) -> list[TuningRecord]:
    """The network and a published record of its first two tasks."""
    registry.register_network(NETWORK)
    key = registry.put_environment(environment)
    return registry.publish([published(CONV, key), published(DENSE, key, 1)])


def lock_of(registry: Registry, network: NetworkVersion = NETWORK, environment: Environment = ENVIRONMENT) -> Lock:
    """What a lookup finds now."""
    matches = registry.lookup([task.workload for task in network.tasks], environment, {})
    return make_lock(network, matches, environment)


@pytest.fixture
def filled(registry: Registry) -> list[TuningRecord]:
    return fill(registry)


@pytest.fixture
def locked() -> Lock:
    """What `lock_of` gives for a filled registry."""
    records = published(CONV, KEY), published(DENSE, KEY, 1)
    matches = [Match(workload, Grade.EXACT, record, (), "") for workload, record in zip((CONV, DENSE), records, strict=True)]
    return make_lock(NETWORK, [*matches, Match(UNTUNED, Grade.COLD, None, (), "")], ENVIRONMENT)


def frozen(locked: Lock, registry: Registry, network: NetworkVersion = NETWORK, **environment: Any) -> dict[str, TuningRecord]:
    return frozen_records(locked, registry, network, make_environment(**environment))


def problems_of(locked: Lock, registry: Registry, network: NetworkVersion = NETWORK, **environment: Any) -> tuple[str, ...]:
    with pytest.raises(FrozenMismatch) as caught:
        frozen(locked, registry, network, **environment)
    assert caught.value.exit_code == 7
    assert caught.value.hint
    return caught.value.problems


def test_a_lock_survives_being_written_and_read(locked: Lock) -> None:
    assert read_lock(write_lock(locked), "bcd.lock") == locked


def test_a_lock_says_what_is_used(locked: Lock) -> None:
    filled = [published(CONV, KEY), published(DENSE, KEY, 1)]
    conv, dense, untuned = locked.tasks
    assert (conv.op, conv.workload, conv.weight, conv.grade) == ("conv2d+relu", CONV.key, 1, Grade.EXACT)
    assert (conv.record, conv.trace, conv.median_ms) == (filled[0].id, trace_digest(filled[0].trace), 1.0)
    assert (dense.record, dense.median_ms) == (filled[1].id, 2.0)
    assert (untuned.op, untuned.grade, untuned.record, untuned.trace) == ("softmax", Grade.COLD, None, None)
    assert locked.untuned == [untuned]
    assert locked.network.digest == NETWORK.digest


def test_the_same_state_gives_the_same_bytes(registry: Registry, locked: Lock, filled: list[TuningRecord]) -> None:
    other_order = dataclasses.replace(NETWORK, tasks=NETWORK.tasks[::-1], created_at=9e9, source="elsewhere.onnx")
    fields = dict(reversed(list(ENVIRONMENT.fields.items())))
    noted = Environment({**fields, "cpu_model": "another", "calibration_ms": 1.0, "tvm_ffi": "0.1.15"})
    text = write_lock(lock_of(registry))
    assert write_lock(lock_of(registry, other_order, noted)) == text == write_lock(locked)
    assert "AMD EPYC" not in text
    assert "\r" not in text
    assert text.isascii()


def test_a_lock_is_toml_with_a_line_for_each_value(locked: Lock) -> None:
    text = write_lock(locked)
    content = tomllib.loads(text)
    assert content["format"] == FORMAT
    assert content["environment"]["fields"]["target"] == ENVIRONMENT.fields["target"]
    assert [task["op"] for task in content["tasks"]] == ["conv2d+relu", "matmul", "softmax"]
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize("name", ['quote " and \\ slash', "line\nbreak", "ünïcödé 網", "\x7f\x01", "", "# [[tasks]]"])
def test_any_name_can_be_written(locked: Lock, name: str) -> None:
    network = dataclasses.replace(locked.network, name=name, version=name, shapes={name: (1, 3), "x": (2,)})
    other = dataclasses.replace(locked, network=network)
    assert read_lock(write_lock(other), "bcd.lock") == other


def test_values_of_any_kind_can_be_written(locked: Lock) -> None:
    fields = {
        "empty": {},
        "list": [],
        "long": list(range(20)),
        "nested": {"a b": [{"c": True}, {"d": 1e-9}], "e": {"f": [["g"] * 9]}},
        "number": 1e22,
    }
    other = dataclasses.replace(locked, environment=dataclasses.replace(locked.environment, fields=fields))
    assert read_lock(write_lock(other), "bcd.lock") == other


def test_git_may_change_the_line_ends(locked: Lock) -> None:
    assert read_lock(write_lock(locked).replace("\n", "\r\n"), "bcd.lock") == locked


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("median_ms = 1.0", "median_ms = 0.1"),
        ("weight = 1", "weight = 2"),
        ("[[tasks]]", "<<<<<<< ours\n[[tasks]]"),
        ("\n\n", "\n"),
    ],
)
def test_an_edited_lock_is_refused(locked: Lock, old: str, new: str) -> None:
    text = write_lock(locked)
    assert old in text
    with pytest.raises(FrozenMismatch, match=r"x\.lock was edited or damaged") as caught:
        read_lock(text.replace(old, new, 1), "x.lock")
    assert "bcd-registry lock" in caught.value.hint


def test_half_a_lock_is_refused(locked: Lock) -> None:
    text = write_lock(locked)
    for end in range(0, len(text), 97):
        with pytest.raises((FrozenMismatch, ConfigError)):
            read_lock(text[:end], "bcd.lock")


def test_a_newer_format_says_so(locked: Lock) -> None:
    text = write_lock(locked).replace(f"format = {FORMAT}", f"format = {FORMAT + 1}")
    with pytest.raises(ConfigError, match=f"has the format {FORMAT + 1}, this release reads {FORMAT}") as caught:
        read_lock(text, "bcd.lock")
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[networks.v1]\n", b"{}", b"\x00" * 50])
def test_what_is_no_lock(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bcd.lock"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="is not a lock"):
        load_lock(path)


def test_a_lock_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the lock"):
        load_lock(tmp_path / "bcd.lock")


def test_a_lock_with_a_right_checksum_and_wrong_content(locked: Lock) -> None:
    wrong = dataclasses.replace(locked, tasks=(dataclasses.replace(locked.tasks[0], record="../../etc"),))
    with pytest.raises(ConfigError, match=r"is not a lock: tasks\.0\.record"):
        read_lock(write_lock(wrong), "bcd.lock")


def test_nothing_changed(locked: Lock) -> None:
    found = compare_locks(locked, locked)
    assert found.n_same == len(locked.tasks)
    found_json = found.as_json()
    assert not any(value for name, value in found_json.items() if name != "n_same")


def test_what_changed_between_two_locks(registry: Registry, locked: Lock, filled: list[TuningRecord]) -> None:
    key = registry.put_environment(ENVIRONMENT)
    new = dataclasses.replace(make_workload("new"), op="add")
    registry.put_workloads([new])
    registry.publish([published(CONV, key, 5, run_times_s=(1e-4,), run_id="run-2")])
    version = make_network("net", "v3", (CONV, DENSE, new))
    after = lock_of(registry, version)
    changed = [dataclasses.replace(t, median_ms=9.0) if t.workload == DENSE.key else t for t in after.tasks]
    environment = dataclasses.replace(after.environment, fields={**after.environment.fields, "tvm": "0.28.0"})
    after = dataclasses.replace(after, tasks=tuple(changed), environment=environment)
    found = compare_locks(locked, after)
    assert found.network == ("version", "digest")
    assert [(d.field, d.then, d.now) for d in found.environment] == [("tvm", "0.27.0", "0.28.0")]
    assert [t.op for t in found.added] == ["add"]
    assert [t.op for t in found.removed] == ["softmax"]
    assert [(a.op, a.record != b.record) for a, b in found.records] == [("conv2d+relu", True)]
    assert [(a.median_ms, b.median_ms) for a, b in found.latencies] == [(2.0, 9.0)]
    assert found.n_same == 0
    assert found.as_json()["added"][0]["op"] == "add"


def test_a_task_called_more_often(locked: Lock) -> None:
    first, *rest = locked.tasks
    after = dataclasses.replace(locked, tasks=(dataclasses.replace(first, weight=7), *rest))
    [(old, new)] = compare_locks(locked, after).weights
    assert (old.weight, new.weight) == (1, 7)


def test_exactly_what_is_locked_is_used(registry: Registry, locked: Lock, filled: list[TuningRecord]) -> None:
    key = registry.put_environment(ENVIRONMENT)
    registry.publish([published(CONV, key, 5, run_times_s=(1e-5,), run_id="faster")])
    records = frozen(locked, registry)
    assert {k: r.id for k, r in records.items()} == {CONV.key: filled[0].id, DENSE.key: filled[1].id}
    assert records[CONV.key].trace == filled[0].trace


def test_lookups_are_answered_by_the_lock(registry: Registry, locked: Lock, filled: list[TuningRecord]) -> None:
    lookups = FrozenLookup(registry, locked, NETWORK)
    matches: list[Match] = lookups.lookup([UNTUNED, CONV], ENVIRONMENT, {CONV.key: 10**6})
    assert [m.grade for m in matches] == [Grade.COLD, Grade.EXACT]
    assert [m.record.id if m.record else None for m in matches] == [None, filled[0].id]
    assert [m.priors for m in matches] == [(), ()]
    with pytest.raises(FrozenMismatch) as caught:
        lookups.quarantine([filled[0].id], "it does not replay")
    assert caught.value.problems == (f"conv2d+relu {CONV.key[:12]}: it does not replay",)
    assert registry.get_record(filled[0].id).state is RecordState.PUBLISHED


def test_a_note_of_the_environment_does_not_matter(registry: Registry, locked: Lock, filled: list[TuningRecord]) -> None:
    assert len(frozen(locked, registry, cpu_model="another", tvm_ffi="9")) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "v9"}, "is of net v2, this is net v9"),
        ({"name": "other"}, "is of net v2, this is other v2"),
        ({"digest": hex_of("other")}, "of another file of net v2"),
        ({"shapes": {"input": (1, 3, 48, 96)}}, "other shapes"),
    ],
)
def test_a_lock_of_another_network(registry: Registry, locked: Lock, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FrozenMismatch, match=words) as caught:
        frozen(locked, registry, dataclasses.replace(NETWORK, **changes))
    assert caught.value.problems == ()


def test_another_environment_is_named_field_by_field(registry: Registry, locked: Lock, filled: list[TuningRecord]) -> None:
    found = problems_of(locked, registry, isa=["sse4.2"], cores=4)
    assert len(found) == 2
    assert all(line.startswith("another environment: ") for line in found)
    assert "avx2+fma only then" in found[0]


def test_everything_that_is_wrong_is_listed(
    registry: Registry, locked: Lock, filled: list[TuningRecord], tmp_path: Path
) -> None:
    conv, dense = filled
    [blob] = (tmp_path / "blobs").rglob(registry.trace_digest(conv.id))
    blob.write_bytes(b"damaged")
    registry.remove_records([dense.id])
    new = dataclasses.replace(make_workload("new"), op="add")
    found = problems_of(locked, registry, make_network("net", "v2", (CONV, DENSE, new)), cores=4)
    assert [line.partition(":")[0] for line in found] == [
        "another environment",
        f"add {new.key[:12]}",
        f"softmax {UNTUNED.key[:12]}",
        f"conv2d+relu {CONV.key[:12]}",
        f"matmul {DENSE.key[:12]}",
    ]


def test_a_quarantined_record_is_named_with_its_reason(registry: Registry, locked: Lock, filled: list[TuningRecord]) -> None:
    registry.quarantine([filled[0].id], "it computes nonsense")
    [line] = problems_of(locked, registry)
    assert "is quarantined: it computes nonsense" in line


def test_a_record_that_was_never_published_is_not_used(registry: Registry, locked: Lock, filled: list[TuningRecord]) -> None:
    key = registry.put_environment(ENVIRONMENT)
    measured = published(CONV, key, 7, state=RecordState.MEASURED)
    registry.keep([measured])
    first = dataclasses.replace(locked.tasks[0], record=measured.id, trace=trace_digest(measured.trace))
    [line] = problems_of(dataclasses.replace(locked, tasks=(first, *locked.tasks[1:])), registry)
    assert "is measured" in line


def test_a_record_with_another_trace_or_workload_is_not_used(
    registry: Registry, locked: Lock, filled: list[TuningRecord]
) -> None:
    conv, dense, untuned = locked.tasks
    swapped = dataclasses.replace(locked, tasks=(dataclasses.replace(conv, record=dense.record), dense, untuned))
    assert "another workload" in problems_of(swapped, registry)[0]
    retraced = dataclasses.replace(locked, tasks=(dataclasses.replace(conv, trace=dense.trace), dense, untuned))
    assert "another trace" in problems_of(retraced, registry)[0]
