"""Blobs in a local folder: `ab/cd/abcd...` below the root, written to `tmp` first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bcd_registry.errors import Conflict, NotFound
from bcd_registry.folders import store_errors

from .digests import blob_digest, checked_digest, is_digest, verified

_TEMPORARY = "tmp"


class LocalBlobs:
    """A `BlobStore` in a folder, which is made at the first `put`.

    A blob is written whole and flushed under a temporary name, then renamed: a reader, a second writer or a killed process
    never meets half of it. Two writers of one digest write the same bytes, so the later rename changes nothing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`."""
        digest = blob_digest(data)
        path = self._path(digest)
        with store_errors(self._root):
            if path.exists():
                self._refuse_other_bytes(path, data, digest)
            else:
                self._write(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        """See `BlobStore.get`."""
        path = self._path(checked_digest(digest))
        with store_errors(self._root):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise NotFound(f"no blob {digest[:12]} in {self._root}") from None
        return verified(data, digest)

    def exists(self, digest: str) -> bool:
        """See `BlobStore.exists`."""
        path = self._path(checked_digest(digest))
        with store_errors(self._root):
            return path.exists()

    def delete(self, digest: str) -> None:
        """See `BlobStore.delete`."""
        path = self._path(checked_digest(digest))
        with store_errors(self._root):
            path.unlink(missing_ok=True)

    def iter_digests(self) -> Iterator[str]:
        """See `BlobStore.iter_digests`."""
        with store_errors(self._root):
            for path in self._root.glob("[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]/*"):
                if is_digest(path.name):
                    yield path.name

    def _path(self, digest: str) -> Path:
        return self._root / digest[:2] / digest[2:4] / digest

    def _refuse_other_bytes(self, path: Path, data: bytes, digest: str) -> None:
        if path.read_bytes() != data:
            raise Conflict(f"blob {digest[:12]} in {self._root} is damaged", hint=f"remove {path}, then store it again")

    def _write(self, path: Path, data: bytes) -> None:
        _make_folder(self._root / _TEMPORARY)
        _make_folder(path.parent)
        handle, name = tempfile.mkstemp(prefix=path.name[:12], dir=self._root / _TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)


def _make_folder(path: Path) -> None:
    """Make the folder and its parents, so that they survive a power cut."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
