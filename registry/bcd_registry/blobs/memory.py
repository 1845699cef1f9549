"""Blobs in memory, for runs without a registry and for tests."""

from __future__ import annotations

from collections.abc import Iterator

from bcd_registry.errors import Conflict, NotFound

from .digests import blob_digest, checked_digest, verified


class MemoryBlobs:
    """A `BlobStore` that ends with the process. Single dictionary operations only, so threads may share it."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`."""
        digest = blob_digest(data)
        if self._blobs.setdefault(digest, bytes(data)) != data:
            raise Conflict(f"blob {digest[:12]} holds other bytes", hint="delete it, then store it again")
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

    def iter_digests(self) -> Iterator[str]:
        """See `BlobStore.iter_digests`."""
        yield from list(self._blobs)
