"""Tuners at work on one registry at the same time: each search is made once, and nothing waits for a dead one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import StoreUnavailable
from bcd_registry.model import Lease
from bcd_registry.registry import Registry
from bcd_tuner.sharing import ClusterLeases
from tests.tuner.test_session import write_network

TRIALS = 8


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        yield Registry(catalog, MemoryBlobs())


def leases(registry: Registry, holder: str, **changes: Any) -> ClusterLeases:
    return ClusterLeases(registry, holder, "environment", **{"retry_s": 0.0, **changes})


def test_one_run_at_a_time_has_a_cluster(registry: Registry) -> None:
    first, second = leases(registry, "first"), leases(registry, "second")
    assert first.acquire("a")
    assert not second.acquire("a")
    assert second.acquire("b")
    assert (first.holds("a"), first.holds("b"), second.holds("b")) == (True, False, True)
    first.release("a")
    assert second.acquire("a")
    first.close()
    second.close()
    assert leases(registry, "third").acquire("a")


def test_a_lease_is_renewed_as_long_as_its_run_lives_and_no_longer(registry: Registry) -> None:
    living, dead = leases(registry, "living", lease_s=0.6), leases(registry, "dead", lease_s=0.6)
    living.acquire("a")
    dead.acquire("b")
    dead._closed.set()  # as if its process had been killed: nobody renews
    other = leases(registry, "other")
    ends = time.monotonic() + 1.5
    while time.monotonic() < ends:
        assert not other.acquire("a")
        time.sleep(0.05)
    assert other.acquire("b")
    living.close()


def test_a_run_that_lost_its_lease_knows(registry: Registry) -> None:
    slow = leases(registry, "slow", lease_s=0.3)
    slow.acquire("a")
    held = slow.fences("a")
    slow._closed.set()
    time.sleep(0.4)
    assert leases(registry, "quick").acquire("a")
    slow._renew("a", held[0])
    assert not slow.holds("a")
    assert slow.fences("a") == ()


def test_a_refused_lease_is_not_asked_for_all_the_time(registry: Registry) -> None:
    now = [0.0]
    other = leases(registry, "other", retry_s=1.0, clock=lambda: now[0])
    first = leases(registry, "first")
    first.acquire("a")
    assert not other.acquire("a")
    first.release("a")
    assert not other.acquire("a")
    now[0] = 1.0
    assert other.acquire("a")


class Unreachable(Registry):
    def acquire_lease(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        raise StoreUnavailable("the catalog does not answer")


def test_without_a_registry_that_leases_a_run_works_alone(tmp_path: Path) -> None:
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        alone = leases(Unreachable(catalog, MemoryBlobs()), "alone")
        assert alone.acquire("a")
        assert alone.holds("b")
        assert alone.note == "work is not shared with other tuners: the catalog does not answer"
        alone.close()


def test_threads_are_gone_after_close(registry: Registry) -> None:
    before = threading.active_count()
    one = leases(registry, "one")
    one.acquire("a")
    one.close()
    assert threading.active_count() == before


def command(home: Path, model: Path) -> list[str]:
    script = Path(sys.executable).with_name("bcd-registry")
    return [str(script), "--home", str(home), "tune", "--model", str(model), "--trials", str(TRIALS), "--json"]


def start(home: Path, model: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    return subprocess.Popen(command(home, model), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-2000:]
    report: dict[str, Any] = json.loads(output)
    assert report["checked"], report["notes"]
    return report


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_processes_on_two_versions_search_everything_once(tmp_path: Path) -> None:
    models = [
        write_network(tmp_path / "v1.onnx", channels=8, classes=10),
        write_network(tmp_path / "v2.onnx", channels=16, classes=10),
    ]
    began = time.monotonic()
    in_turn = [finish(start(tmp_path / "in turn", model)) for model in models]
    in_turn_s = time.monotonic() - began
    began = time.monotonic()
    at_once = [finish(process) for process in [start(tmp_path / "at once", model) for model in models * 2]]
    at_once_s = time.monotonic() - began
    asked = sum(report["trials"] for report in in_turn)
    assert sum(report["trials"] for report in at_once) <= 1.1 * asked
    searched = Counter(task["workload_key"] for report in at_once for task in report["tasks"] if task["trials"])
    assert set(searched.values()) == {1}
    assert at_once_s < 6 * in_turn_s  # four processes start, check and compile where two did; the tuning is shared
    again = finish(start(tmp_path / "at once", models[1]))
    assert again["trials"] == 0
    assert {task["grade"] for task in again["tasks"]} == {"exact"}
