"""Stores around stores: one that only reads, one with local copies, one that trusts nobody."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from bcd_registry.errors import Conflict, CorruptBlob, NotFound, ReadOnly, RegistryError
from bcd_registry.model import BlobInfo
from bcd_registry.ports import BlobStore

from .digests import REFRESH_AFTER_S, blob_digest, checked_digest, is_digest, verified
from .ledger import SizeLedger

_LOG = logging.getLogger(__name__)
_KEPT_SHARE = 0.9


class ReadOnlyBlobs:
    """A `BlobStore` that refuses every write before the store is asked."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`. Refused, whether or not the bytes are there."""
        raise _read_only("stored")

    def get(self, digest: str) -> bytes:
        """See `BlobStore.get`."""
        return self._blobs.get(digest)

    def exists(self, digest: str) -> bool:
        """See `BlobStore.exists`."""
        return self._blobs.exists(digest)

    def delete(self, digest: str) -> None:
        """See `BlobStore.delete`. Refused, whether or not the blob is there."""
        raise _read_only("deleted")

    def iter_blobs(self) -> Iterator[BlobInfo]:
        """See `BlobStore.iter_blobs`."""
        return self._blobs.iter_blobs()


class VerifyingBlobs:
    """A `BlobStore` over one that somebody else wrote: nothing that it returns is believed.

    A blob that is there already costs `put` a read.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`."""
        digest = blob_digest(data)
        if self._blobs.exists(digest) and not self._holds(digest, data):
            raise Conflict(f"blob {digest[:12]} holds other bytes", hint="delete it, then store it again")
        named = self._blobs.put(data)
        if named != digest:
            raise CorruptBlob(f"blob {digest[:12]} was stored under another name: {named[:80]!r}", hint="mend the store")
        return digest

    def get(self, digest: str) -> bytes:
        """See `BlobStore.get`."""
        return verified(self._blobs.get(checked_digest(digest)), digest)

    def exists(self, digest: str) -> bool:
        """See `BlobStore.exists`."""
        return self._blobs.exists(checked_digest(digest))

    def delete(self, digest: str) -> None:
        """See `BlobStore.delete`."""
        self._blobs.delete(checked_digest(digest))

    def iter_blobs(self) -> Iterator[BlobInfo]:
        """See `BlobStore.iter_blobs`. What has no digest for a name is left out."""
        return (blob for blob in self._blobs.iter_blobs() if is_digest(blob.digest))

    def _holds(self, digest: str, data: bytes) -> bool:
        """Whether the bytes are there, or nothing any more."""
        try:
            return self._blobs.get(digest) == data
        except NotFound:
            return True
        except CorruptBlob:
            return False


class TieredBlobs:
    """A `BlobStore` that keeps copies of a remote one's blobs in a local one.

    The remote store has the say: `put`, `exists`, `delete` and `iter_blobs` ask it. A copy is only ever a help: what goes
    wrong with one is logged, and never an error. Several processes may share the local store; each sees to its size.
    """

    def __init__(
        self,
        local: BlobStore,
        remote: BlobStore,
        *,
        capacity_bytes: int,
        ledger: SizeLedger | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep copies in `local`, which holds nothing else.

        Args:
            capacity_bytes: When the copies are more, those that were not used for longest go.
            ledger: Tells how much the copies are; without one they are counted when the first is made.
            clock: Unix seconds, as in the `modified_at` of `local`.
        """
        self._local = local
        self._remote = remote
        self._capacity_bytes = capacity_bytes
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._used_at: dict[str, float] = {}
        self._n_bytes: int | None = None

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`. The copy is made when the remote store has the bytes."""
        digest = self._remote.put(data)
        self._keep(digest, data)
        return digest

    def get(self, digest: str) -> bytes:
        """See `BlobStore.get`. The remote store is asked when there is no copy, or a damaged one."""
        data = self._copy(checked_digest(digest))
        if data is None:
            data = self._remote.get(digest)
            self._keep(digest, data)
        return data

    def exists(self, digest: str) -> bool:
        """See `BlobStore.exists`."""
        return self._remote.exists(digest)

    def delete(self, digest: str) -> None:
        """See `BlobStore.delete`."""
        self._drop(checked_digest(digest))
        self._remote.delete(digest)

    def iter_blobs(self) -> Iterator[BlobInfo]:
        """See `BlobStore.iter_blobs`."""
        return self._remote.iter_blobs()

    def _copy(self, digest: str) -> bytes | None:
        """The bytes of the copy, if there is a good one; it counts as used now."""
        try:
            data = self._local.get(digest)
        except NotFound:
            return None
        except CorruptBlob as error:
            _LOG.warning("%s; it is fetched anew", error.message)
            self._drop(digest)
            return None
        except RegistryError as error:
            _LOG.debug("no copy of blob %s: %s", digest[:12], error.message)
            return None
        self._use(digest, data)
        return data

    def _use(self, digest: str, data: bytes) -> None:
        """Note that the copy is used: for this process each time, for the others once in a while."""
        now = self._clock()
        if now - self._used_at.get(digest, 0.0) > REFRESH_AFTER_S:
            with contextlib.suppress(RegistryError):
                self._local.put(data)
        self._used_at[digest] = now

    def _keep(self, digest: str, data: bytes) -> None:
        """Make a copy where that can be done, and room for it."""
        if len(data) > self._capacity_bytes:
            return
        try:
            try:
                self._local.put(data)
            except Conflict:
                self._local.delete(digest)
                self._local.put(data)
            self._used_at[digest] = self._clock()
            self._make_room(len(data))
        except RegistryError as error:
            _LOG.debug("blob %s is not copied: %s", digest[:12], error.message)

    def _make_room(self, n_new_bytes: int) -> None:
        """Delete the copies that were not used for longest when they are too many; some more, so that it is done seldom."""
        with self._lock:
            if self._n_bytes is None and self._ledger is not None:
                self._n_bytes = self._ledger.read()
            if self._n_bytes is not None and self._n_bytes + n_new_bytes <= self._capacity_bytes:
                self._n_bytes += n_new_bytes
                if self._ledger is not None:
                    self._ledger.add(n_new_bytes)
                return
            self._n_bytes = self._count_and_drop()
            if self._ledger is not None:
                self._ledger.replace(self._n_bytes)

    def _count_and_drop(self) -> int:
        """Look at every copy, and delete what is too much; returns the bytes of those that stay."""
        copies = sorted(self._local.iter_blobs(), key=self._last_use)
        n_bytes = sum(copy.size for copy in copies)
        kept_bytes = self._capacity_bytes if n_bytes <= self._capacity_bytes else self._capacity_bytes * _KEPT_SHARE
        for copy in copies[:-1]:
            if n_bytes <= kept_bytes:
                break
            self._drop(copy.digest)
            n_bytes -= copy.size
        return n_bytes

    def _last_use(self, copy: BlobInfo) -> float:
        return max(copy.modified_at, self._used_at.get(copy.digest, 0.0))

    def _drop(self, digest: str) -> None:
        """Delete the copy, where that can be done."""
        self._used_at.pop(digest, None)
        try:
            self._local.delete(digest)
        except RegistryError as error:
            _LOG.debug("the copy of blob %s stays: %s", digest[:12], error.message)


def _read_only(what: str) -> ReadOnly:
    return ReadOnly(f"the registry is read-only: nothing is {what}", hint="leave out --read-only, and unset BCD_READ_ONLY")
