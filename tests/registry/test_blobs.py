from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.errors import ConfigError, Conflict, CorruptBlob, StoreDenied, StoreUnavailable
from bcd_registry.testing.blob_contract import Age, BlobStoreContract, BlobStoreMachine, Plant, listed

OLD_S = 7200.0


class TestMemoryBlobs(BlobStoreContract):
    @pytest.fixture
    def blobs(self) -> MemoryBlobs:
        return MemoryBlobs()

    @pytest.fixture
    def plant(self, blobs: MemoryBlobs) -> Plant:
        return blobs._blobs.__setitem__

    @pytest.fixture
    def age(self, blobs: MemoryBlobs) -> Age:
        return lambda digest: blobs._modified_at.__setitem__(digest, blobs._modified_at[digest] - OLD_S)


class TestLocalBlobs(BlobStoreContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> LocalBlobs:
        return LocalBlobs(tmp_path / "not" / "yet" / "there")

    @pytest.fixture
    def plant(self, blobs: LocalBlobs) -> Plant:
        def write(digest: str, data: bytes) -> None:
            blobs._path(digest).parent.mkdir(parents=True, exist_ok=True)
            blobs._path(digest).write_bytes(data)

        return write

    @pytest.fixture
    def age(self, blobs: LocalBlobs) -> Age:
        def set_back(digest: str) -> None:
            _set_back(blobs, digest)

        return set_back


def _set_back(blobs: LocalBlobs, digest: str, seconds: float = OLD_S) -> float:
    """Let a blob be older; returns when it was written then."""
    path = blobs._path(digest)
    written_at = path.stat().st_mtime - seconds
    os.utime(path, (written_at, written_at))
    return path.stat().st_mtime


class MemoryMachine(BlobStoreMachine):
    def open_store(self) -> MemoryBlobs:
        return MemoryBlobs()


class LocalMachine(BlobStoreMachine):
    def open_store(self) -> LocalBlobs:
        self.root = Path(tempfile.mkdtemp(prefix="bcd-blobs-"))
        return LocalBlobs(self.root)

    def teardown(self) -> None:
        shutil.rmtree(self.root)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=30, deadline=None)
TestLocalMachine = LocalMachine.TestCase
TestLocalMachine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


def test_blobs_lie_two_folders_deep_and_nothing_else_is_left(blobs: LocalBlobs, tmp_path: Path) -> None:
    digest = blobs.put(b"abc")
    files = [path.relative_to(tmp_path / "blobs") for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert files == [Path(digest[:2], digest[2:4], digest)]


def test_other_files_are_not_listed(blobs: LocalBlobs, tmp_path: Path) -> None:
    digest = blobs.put(b"abc")
    (tmp_path / "blobs" / "README").write_text("mine")
    (tmp_path / "blobs" / digest[:2] / digest[2:4] / "note").write_text("mine")
    assert listed(blobs) == [digest]


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, StoreUnavailable, "no space left"),
        (errno.EDQUOT, StoreUnavailable, "no space left"),
        (errno.EACCES, StoreDenied, "no permission"),
        (errno.EROFS, StoreDenied, "no permission"),
        (errno.EIO, StoreUnavailable, "cannot use"),
    ],
)
def test_a_failed_write_says_why_and_leaves_nothing(
    blobs: LocalBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreDenied], message: str
) -> None:
    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("bcd_registry.blobs.local.os.fsync", fail)
    (tmp_path / "blobs" / "tmp").mkdir(parents=True)
    digest_folder = tmp_path / "blobs" / "ba" / "78"
    digest_folder.mkdir(parents=True)
    with pytest.raises(kind, match=message) as caught:
        blobs.put(b"abc")
    assert "BCD_HOME" in caught.value.hint
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blobs = LocalBlobs(tmp_path / "file" / "blobs")
    with pytest.raises(StoreUnavailable, match="not a folder"):
        blobs.put(b"abc")


def test_a_folder_in_place_of_a_blob(blobs: LocalBlobs, tmp_path: Path) -> None:
    digest = blobs.put(b"abc")
    blobs.delete(digest)
    blobs._path(digest).mkdir()
    for call in (lambda: blobs.get(digest), lambda: blobs.put(b"abc")):
        with pytest.raises(StoreUnavailable):
            call()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(StoreDenied, match="no permission"):
        LocalBlobs(tmp_path / "locked" / "blobs").put(b"abc")


def test_two_processes_write_the_same_blobs(blobs: LocalBlobs, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from bcd_registry.blobs.local import LocalBlobs\n"
        "blobs = LocalBlobs(Path(sys.argv[1]))\n"
        "for i in range(50): blobs.put(bytes([i]) * 5000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "blobs")]) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    digests = listed(blobs)
    assert len(digests) == 50
    assert all(len(blobs.get(digest)) == 5000 for digest in digests)
    assert list((tmp_path / "blobs" / "tmp").iterdir()) == []


def test_what_was_put_within_the_hour_is_left_alone(blobs: LocalBlobs) -> None:
    digest = blobs.put(b"abc")
    written_at = _set_back(blobs, digest, 1800.0)
    blobs.put(b"abc")
    assert [blob.modified_at for blob in blobs.iter_blobs()] == [written_at]


def test_a_blob_that_goes_while_it_is_put_is_written_anew(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = blobs.put(b"abc")
    _set_back(blobs, digest)
    utime = os.utime

    def collect_garbage(path: Path) -> None:
        path.unlink()
        utime(path)

    monkeypatch.setattr("bcd_registry.blobs.local.os.utime", collect_garbage)
    assert blobs.put(b"abc") == digest
    assert blobs.get(digest) == b"abc"


def test_a_blob_that_goes_while_they_are_listed_is_left_out(blobs: LocalBlobs) -> None:
    digests = {blobs.put(bytes([i])) for i in range(8)}
    found = blobs.iter_blobs()
    first = next(found).digest
    for digest in digests - {first}:
        blobs.delete(digest)
    assert list(found) == []


def test_what_is_larger_than_any_blob_is_not_read_and_not_stored(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "blobs", max_blob_bytes=1000)
    digest = blobs.put(bytes(1000))
    assert blobs.get(digest) == bytes(1000)
    with blobs._path(digest).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptBlob, match=rf"{digest[:12]} is damaged: it has {1 << 40} bytes"):
        blobs.get(digest)
    with pytest.raises(Conflict):
        blobs.put(bytes(1000))
    with pytest.raises(ConfigError, match="1001 bytes are too many"):
        blobs.put(bytes(1001))
