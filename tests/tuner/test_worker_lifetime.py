"""Whatever ends the parent, its workers end too, and its files go away with it or with the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from bcd_tuner.scratch import Scratch, measuring_lock, remove_stale

# No `__main__` guard on purpose: users' scripts have none.
# A shell's background job starts with SIGINT ignored, and so would Python: it takes its own handler back.
_SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from bcd_tuner.targets import resolve_target
from bcd_tuner.workers import WarmPool
with WarmPool(resolve_target("native"), n_workers=1, lock_path=Path(sys.argv[1])) as pool:
    pool.call_builder(abs, (-1,), 60)
    print(*pool.pids, flush=True)
    pool.call_runner([(time.sleep, (300,))], 300)
"""
# A signal that another thread takes wakes no wait of the main thread, like one that comes just before that wait.
_SIGNAL_ELSEWHERE = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from bcd_tuner.targets import resolve_target
from bcd_tuner.workers import WarmPool
with WarmPool(resolve_target("native"), n_workers=1, lock_path=Path(sys.argv[1])) as pool:
    pool.call_builder(abs, (-1,), 60)
    take = lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    threading.Timer(2.0, take).start()
    print(*pool.pids, flush=True)
    pool.call_runner([(time.sleep, (300,))], 300)
"""
_WITHOUT_CLOSE = """
import sys
from pathlib import Path
from bcd_tuner.targets import resolve_target
from bcd_tuner.workers import WarmPool
pool = WarmPool(resolve_target("native"), n_workers=1, lock_path=Path(sys.argv[1]))
pool.call_builder(abs, (-1,), 60)
print(*pool.pids, flush=True)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    with start(_SCRIPT, tmp_path) as process:
        assert process.stdout is not None
        yield process, [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        process.kill()


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    temporary = folder / "tmp"
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder / "lock")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )


def assert_gone(workers: list[psutil.Process]) -> None:
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert [w for w in alive if w.status() != psutil.STATUS_ZOMBIE] == []


def test_kill_9_leaves_no_worker_and_the_next_start_cleans(
    parent: tuple[subprocess.Popen[str], list[psutil.Process]], tmp_path: Path
) -> None:
    process, workers = parent
    process.kill()
    process.wait(10)
    assert_gone(workers)
    assert len(list((tmp_path / "tmp").glob("bcd-registry-*"))) == 1
    remove_stale(tmp_path / "tmp")
    assert list((tmp_path / "tmp").iterdir()) == []
    FileLock(tmp_path / "lock", timeout=0).acquire().lock.release()


def test_ctrl_c_leaves_neither_worker_nor_file(
    parent: tuple[subprocess.Popen[str], list[psutil.Process]], tmp_path: Path
) -> None:
    process, workers = parent
    os.killpg(process.pid, signal.SIGINT)
    process.wait(15)
    assert_gone(workers)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_signal_that_wakes_no_wait_is_seen_all_the_same(tmp_path: Path) -> None:
    with start(_SIGNAL_ELSEWHERE, tmp_path) as process:
        assert process.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        try:
            process.wait(30)
        finally:
            process.kill()
    assert_gone(workers)


def test_workers_ignore_ctrl_c(parent: tuple[subprocess.Popen[str], list[psutil.Process]]) -> None:
    process, workers = parent
    for worker in workers:
        worker.send_signal(signal.SIGINT)
    assert process.poll() is None
    assert all(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)


def test_a_pool_that_nobody_closes_ends_with_its_process(tmp_path: Path) -> None:
    with start(_WITHOUT_CLOSE, tmp_path) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(output.split()) == 2
    assert not [pid for pid in output.split() if psutil.pid_exists(int(pid))]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_scratch_folder_in_use_is_not_stale(tmp_path: Path) -> None:
    mine, dead = Scratch(tmp_path), Scratch(tmp_path)
    mine.path.rename(tmp_path / "bcd-registry-999999999-held")  # a container's id is not ours, its lock is
    dead.close()
    (tmp_path / "bcd-registry-999999998-dead").mkdir()
    (tmp_path / "bcd-registry-other").mkdir()
    remove_stale(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {"bcd-registry-999999999-held", "bcd-registry-other"}
    mine.close()


def test_the_hosts_lock_does_not_depend_on_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measuring_lock().lock_file
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert measuring_lock().lock_file == first
