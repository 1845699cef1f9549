from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import Conflict
from bcd_registry.testing.catalog_contract import EXPIRED_S, LONG_S, taken
from bcd_registry.testing.history_contract import DIGEST
from bcd_registry.testing.values import ENVIRONMENT, make_record, make_workload

N_PROCESSES = 4
N_LEASES = 12


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A catalog that several processes share."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    SqlCatalog.open_url(url).close()
    return url


def started(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[list[str]]:
    """Let them begin together, and return what each printed."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return printed


ACQUIRE = f"""
import sys
from bcd_registry.catalog.sql import SqlCatalog

with SqlCatalog.open_url(sys.argv[1]) as catalog:
    catalog.list_pins()
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range({N_LEASES}):
        if catalog.acquire_lease(f"cluster {{i}}", sys.argv[2], {LONG_S}) is not None:
            print(i)
"""


def test_of_many_processes_one_gets_each_lease(url: str) -> None:
    won = outputs([started(ACQUIRE, url, f"run-{i}") for i in range(N_PROCESSES)])
    assert sorted(int(i) for each in won for i in each) == list(range(N_LEASES))


COUNT = """
import sys
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import Conflict
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_record, make_workload

workload = make_workload("w")
with SqlCatalog.open_url(sys.argv[1]) as catalog:
    key = catalog.put_environment(ENVIRONMENT)
    catalog.put_workloads([workload])
    print("ready", flush=True)
    sys.stdin.readline()
    written = 0
    while written < 10:
        lease = catalog.acquire_lease("counter", sys.argv[2], 0.0)
        if lease is None:
            continue
        number = len(catalog.list_records(limit=1000))
        record = make_record(workload, key, run_id=f"{sys.argv[2]} {number}", trials=number)
        try:
            catalog.add_records([record], [hex_of("trace")], fences=[lease])
        except Conflict:
            continue
        written += 1
        print(number)
"""


def test_a_fence_keeps_out_whoever_was_overtaken(url: str) -> None:
    """Each reads a number and writes the next one, with leases that expire at once: without fences, numbers come twice."""
    numbers = outputs([started(COUNT, url, f"run-{i}") for i in range(N_PROCESSES)])
    assert sorted(int(number) for each in numbers for number in each) == list(range(10 * N_PROCESSES))


DIE = """
import os, signal, sys
from bcd_registry.catalog.sql import SqlCatalog

catalog = SqlCatalog.open_url(sys.argv[1])
lease = catalog.acquire_lease("cluster c", "dead", float(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("ttl_s", "free"), [(EXPIRED_S, True), (LONG_S, False)])
def test_a_killed_holder_blocks_no_longer_than_its_time(url: str, ttl_s: float, free: bool) -> None:
    holder = started(DIE, url, str(ttl_s))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    holder.communicate("go\n", timeout=60)
    with SqlCatalog.open_url(url) as catalog:
        assert (catalog.acquire_lease("cluster c", "next", LONG_S) is not None) == free


def test_two_catalogs_agree_on_a_lease(url: str) -> None:
    workload = make_workload("w")
    with SqlCatalog.open_url(url) as one, SqlCatalog.open_url(url) as two:
        one.put_workloads([workload])
        record = make_record(workload, one.put_environment(ENVIRONMENT))
        lost = taken(one.acquire_lease("c", "run-1", EXPIRED_S))
        held = taken(two.acquire_lease("c", "run-2", LONG_S))
        assert one.acquire_lease("c", "run-1", LONG_S) is None
        with pytest.raises(Conflict, match="went to run-2"):
            one.add_records([record], [DIGEST], fences=[lost])
        two.add_records([record], [DIGEST], fences=[held])
        two.release_lease(held)
        assert taken(one.acquire_lease("c", "run-1", LONG_S)).token > held.token
