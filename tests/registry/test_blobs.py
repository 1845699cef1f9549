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
from bcd_registry.errors import StoreDenied, StoreUnavailable
from bcd_registry.testing.blob_contract import BlobStoreContract, BlobStoreMachine, Damage


class TestMemoryBlobs(BlobStoreContract):
    @pytest.fixture
    def blobs(self) -> MemoryBlobs:
        return MemoryBlobs()

    @pytest.fixture
    def damage(self, blobs: MemoryBlobs) -> Damage:
        return blobs._blobs.__setitem__


class TestLocalBlobs(BlobStoreContract):
    @pytest.fixture
    def damage(self, blobs: LocalBlobs) -> Damage:
        def write(digest: str, data: bytes) -> None:
            blobs._path(digest).write_bytes(data)

        return write

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> LocalBlobs:
        return LocalBlobs(tmp_path / "not" / "yet" / "there")


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
    assert list(blobs.iter_digests()) == [digest]


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
    digests = list(blobs.iter_digests())
    assert len(digests) == 50
    assert all(len(blobs.get(digest)) == 5000 for digest in digests)
    assert list((tmp_path / "blobs" / "tmp").iterdir()) == []
