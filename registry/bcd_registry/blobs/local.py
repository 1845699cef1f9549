"""Blobs in a local folder: `ab/cd/abcd...` below the root, written to `tmp` first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bcd_registry.errors import Conflict, NotFound
from bcd_registry.folders import make_folder, store_errors, write_whole
from bcd_registry.model import BlobInfo

from .digests import (
    MAX_BLOB_BYTES,
    REFRESH_AFTER_S,
    blob_digest,
    checked_digest,
    is_digest,
    require_readable,
    storable,
    verified,
)

_TEMPORARY = "tmp"


class LocalBlobs:
    """A `BlobStore` in a folder, which is made at the first `put`.

    A blob is written whole and flushed under a temporary name, then renamed: a reader, a second writer or a killed process
    never meets half of it. Two writers of one digest write the same bytes, so the later rename changes nothing.
    """

    def __init__(self, root: Path, *, max_blob_bytes: int = MAX_BLOB_BYTES, clock: Callable[[], float] = time.time) -> None:
        """Use the folder.

        Args:
            max_blob_bytes: What is larger is not stored, and damaged when it is there.
            clock: Unix seconds, to tell how old a blob is.
        """
        self._root = root
        self._max_blob_bytes = max_blob_bytes
        self._clock = clock

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`."""
        digest = blob_digest(storable(data, self._max_blob_bytes))
        path = self._path(digest)
        with store_errors(self._root):
            if not self._holds(path, data, digest):
                self._write(path, data)
        return digest

    def get(self, digest: str) -> bytes:
        """See `BlobStore.get`."""
        path = self._path(checked_digest(digest))
        with store_errors(self._root):
            try:
                with path.open("rb") as file:
                    require_readable(os.fstat(file.fileno()).st_size, digest, self._max_blob_bytes)
                    data = file.read()
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

    def iter_blobs(self) -> Iterator[BlobInfo]:
        """See `BlobStore.iter_blobs`."""
        with store_errors(self._root):
            for path in self._root.glob("[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]/*"):
                if is_digest(path.name):
                    yield from _info(path)

    def _path(self, digest: str) -> Path:
        return self._root / digest[:2] / digest[2:4] / digest

    def _holds(self, path: Path, data: bytes, digest: str) -> bool:
        """Whether the bytes are there; then they count as put now."""
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                same = found.st_size == len(data) and file.read() == data
            if not same:
                raise Conflict(f"blob {digest[:12]} in {self._root} is damaged", hint=f"remove {path}, then store it again")
            if self._clock() - found.st_mtime > REFRESH_AFTER_S:
                os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _write(self, path: Path, data: bytes) -> None:
        make_folder(self._root / _TEMPORARY)
        make_folder(path.parent)
        write_whole(path, data, temporary=self._root / _TEMPORARY, prefix=path.name[:12])


def _info(path: Path) -> Iterator[BlobInfo]:
    """What the file says of the blob; nothing when it was deleted meanwhile."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    yield BlobInfo(path.name, found.st_size, found.st_mtime)
