"""Blobs in memory, for runs without a registry and for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bcd_registry.errors import Conflict, NotFound
from bcd_registry.model import BlobInfo

from .digests import blob_digest, checked_digest, verified


class MemoryBlobs:
    """A `BlobStore` that ends with the process. Single dictionary operations only, so threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._blobs: dict[str, bytes] = {}
        self._modified_at: dict[str, float] = {}
        self._clock = clock

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`."""
        digest = blob_digest(data)
        if self._blobs.setdefault(digest, bytes(data)) != data:
            raise Conflict(f"blob {digest[:12]} holds other bytes", hint="delete it, then store it again")
        self._modified_at[digest] = self._clock()
        return digest

    def get(self, digest: str) -> bytes:
        """See `BlobStore.get`."""
        data = self._blobs.get(checked_digest(digest))
        if data is None:
            raise NotFound(f"no blob {digest[:12]} in memory")
        return verified(data, digest)

    def exists(self, digest: str) -> bool:
        """See `BlobStore.exists`."""
        return checked_digest(digest) in self._blobs

    def delete(self, digest: str) -> None:
        """See `BlobStore.delete`."""
        self._blobs.pop(checked_digest(digest), None)
        self._modified_at.pop(digest, None)

    def iter_blobs(self) -> Iterator[BlobInfo]:
        """See `BlobStore.iter_blobs`."""
        for digest, data in list(self._blobs.items()):
            yield BlobInfo(digest, len(data), self._modified_at.get(digest) or self._clock())
