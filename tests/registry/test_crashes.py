"""kill -9 of a publisher at random moments: what it acknowledged is there, nothing is damaged, and no lease outlives its time.

`BCD_TEST_KILLS` sets how often; a hundred is what a release is tried with.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from bcd_registry.registry import Registry
from bcd_registry.settings import load_settings, open_registry
from infra.local_stack import LocalStack

KILLS = int(os.environ.get("BCD_TEST_KILLS", "6"))
LEASE_S = 1.0

# Publishes for ever; a line is printed only after the registry has taken what it names.
_PUBLISHER = """
import itertools, os, sys
from bcd_registry.model import RecordState
from bcd_registry.settings import load_settings, open_registry
from bcd_registry.testing.values import ENVIRONMENT, TRACE, make_record, make_workload
run = sys.argv[1]
with open_registry(load_settings()) as registry:
    registry.acquire_lease("cluster", run, 1.0)
    key = registry.put_environment(ENVIRONMENT)
    for i in itertools.count():
        workloads = [make_workload(f"{run} {i} {j}") for j in range(3)]
        registry.put_workloads(workloads)
        trace = [TRACE[0], [[0, [i, 4]], [1, run]]]
        records = [make_record(w, key, run_id=run, state=RecordState.CHECKED, trace=trace) for w in workloads]
        registry.publish(records)
        print(*(record.id for record in records), flush=True)
"""


@pytest.fixture(params=["embedded", "team"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The environment variables of a fresh registry, set for this process, too."""
    variables = {"BCD_HOME": str(tmp_path / "home")}
    if request.param == "team":
        stack: LocalStack = request.getfixturevalue("stack")
        variables |= dict(stack.environment)
        variables["BCD_DATABASE_URL"] = request.getfixturevalue("postgres_url")
        variables["BCD_BLOBS_URL"] = request.getfixturevalue("s3_prefix")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def publish_until_killed(run: str, seconds: float) -> set[str]:
    """Ids of the records that were acknowledged before the end."""
    command = [sys.executable, "-c", _PUBLISHER, run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = process.stdout.readline()  # the first one: starting takes longer than the seconds
        time.sleep(seconds)
        process.kill()
        lines = [acknowledged, *process.stdout.read().splitlines(keepends=True)]
    return {record_id for line in lines if line.endswith("\n") for record_id in line.split()}


def assert_readable(registry: Registry, acknowledged: set[str]) -> None:
    stored = {record.id for record in registry.list_records(limit=1_000_000)}
    assert acknowledged <= stored
    for record_id in stored:
        assert registry.get_record(record_id).trace is not None


@pytest.mark.slow
def test_what_a_killed_publisher_had_acknowledged_is_there_and_whole(backend: Mapping[str, str]) -> None:
    moments = random.Random(0)
    acknowledged: set[str] = set()
    for i in range(KILLS):
        acknowledged |= publish_until_killed(f"run {i}", moments.uniform(0.0, 0.3))
        killed_at = time.monotonic()
        with open_registry(load_settings()) as registry:
            while registry.acquire_lease("cluster", f"after {i}", LEASE_S) is None:
                assert time.monotonic() < killed_at + LEASE_S + 1.0
                time.sleep(0.05)
            lease = registry.acquire_lease("cluster", f"after {i}", LEASE_S)
            assert lease is not None
            registry.release_lease(lease)
    assert len(acknowledged) >= 3 * KILLS
    with open_registry(load_settings()) as registry:
        assert_readable(registry, acknowledged)
        blobs = {blob.digest for blob in registry.iter_blobs()}
        assert registry.named_blobs() <= blobs
