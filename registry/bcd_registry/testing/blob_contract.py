"""What every `BlobStore` does. The names of the tests say it."""

# ruff: noqa: D102

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from bcd_registry.errors import ConfigError, Conflict, CorruptBlob, NotFound
from bcd_registry.ports import BlobStore

Plant = Callable[[str, bytes], None]
"""Puts bytes, right ones or others, under a digest, past the store."""

Age = Callable[[str], None]
"""Makes a blob older than putting it again leaves alone, past the store."""

ABSENT = "0" * 64


def listed(blobs: BlobStore) -> list[str]:
    """The digests of all blobs, in order."""
    return sorted(blob.digest for blob in blobs.iter_blobs())


class BlobReadsContract:
    """What a store does that may only be read. Give the fixtures `blobs`, an empty store, and `plant`."""

    @pytest.fixture
    def blobs(self) -> BlobStore:
        """The empty store to test."""
        raise NotImplementedError

    @pytest.fixture
    def plant(self, blobs: BlobStore) -> Plant:
        """The way past the store."""
        raise NotImplementedError

    @pytest.mark.parametrize("data", [b"", b"abc", bytes(range(256)) * 4096])
    def test_reads_what_is_there(self, blobs: BlobStore, plant: Plant, data: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()
        plant(digest, data)
        assert blobs.exists(digest)
        assert blobs.get(digest) == data
        assert [(blob.digest, blob.size) for blob in blobs.iter_blobs()] == [(digest, len(data))]

    def test_reads_nothing_where_nothing_is(self, blobs: BlobStore) -> None:
        assert not blobs.exists(ABSENT)
        assert listed(blobs) == []
        with pytest.raises(NotFound, match=ABSENT[:12]):
            blobs.get(ABSENT)

    @pytest.mark.parametrize("name", ["", "abc", "A" * 64, "g" * 64, "../" * 21 + "a", "a" * 63 + "\n", "a" * 65])
    def test_refuses_to_read_what_is_no_digest(self, blobs: BlobStore, name: str) -> None:
        for call in (blobs.get, blobs.exists):
            with pytest.raises(ConfigError):
                call(name)

    @pytest.mark.parametrize("other", [b"", b"ab", b"abd", b"abcd"])
    def test_never_returns_damaged_bytes(self, blobs: BlobStore, plant: Plant, other: bytes) -> None:
        digest = hashlib.sha256(b"abc").hexdigest()
        plant(digest, other)
        assert blobs.exists(digest)
        with pytest.raises(CorruptBlob, match=digest[:12]):
            blobs.get(digest)


class BlobStoreContract(BlobReadsContract):
    """Inherit it and give the fixtures `blobs`, an empty store, and `plant` and `age`, raw accessors to the same bytes."""

    @pytest.fixture
    def age(self, blobs: BlobStore) -> Age:
        """The way to an old blob."""
        raise NotImplementedError

    @pytest.mark.parametrize("data", [b"", b"abc", bytes(range(256)) * 4096])
    def test_reads_back_what_was_put_under_its_sha256(self, blobs: BlobStore, data: bytes) -> None:
        digest = blobs.put(data)
        assert digest == hashlib.sha256(data).hexdigest()
        assert blobs.get(digest) == data
        assert blobs.exists(digest)

    def test_putting_again_is_a_success(self, blobs: BlobStore) -> None:
        assert blobs.put(b"abc") == blobs.put(b"abc")
        assert listed(blobs) == [blobs.put(b"abc")]

    def test_putting_again_what_is_old_counts_as_put_now(self, blobs: BlobStore, age: Age) -> None:
        digest = blobs.put(b"abc")
        age(digest)
        (old,) = blobs.iter_blobs()
        blobs.put(b"abc")
        (new,) = blobs.iter_blobs()
        assert (new.digest, new.size) == (old.digest, old.size) == (digest, 3)
        assert new.modified_at > old.modified_at
        assert blobs.get(digest) == b"abc"

    def test_deleting(self, blobs: BlobStore) -> None:
        digest = blobs.put(b"abc")
        blobs.delete(digest)
        blobs.delete(digest)
        blobs.delete(ABSENT)
        assert not blobs.exists(digest)
        with pytest.raises(NotFound):
            blobs.get(digest)
        assert blobs.put(b"abc") == digest
        assert blobs.get(digest) == b"abc"

    @pytest.mark.parametrize("name", ["", "../" * 21 + "a", "a" * 63 + "\n"])
    def test_refuses_to_delete_what_is_no_digest(self, blobs: BlobStore, name: str) -> None:
        with pytest.raises(ConfigError):
            blobs.delete(name)

    @pytest.mark.parametrize("other", [b"", b"abd", b"abcd"])
    def test_putting_over_damaged_bytes_is_a_conflict(self, blobs: BlobStore, plant: Plant, other: bytes) -> None:
        digest = blobs.put(b"abc")
        plant(digest, other)
        with pytest.raises(Conflict, match=digest[:12]):
            blobs.put(b"abc")
        blobs.delete(digest)
        assert blobs.get(blobs.put(b"abc")) == b"abc"

    def test_threads_may_share_it(self, blobs: BlobStore) -> None:
        data = [bytes([i % 8]) * 1000 for i in range(64)]
        with ThreadPoolExecutor(8) as pool:
            digests = list(pool.map(blobs.put, data))
            assert list(pool.map(blobs.get, digests)) == data
        assert listed(blobs) == sorted(set(digests))


class BlobStoreMachine(RuleBasedStateMachine):
    """Any sequence of calls against a dictionary. Inherit it, give `open_store`, and take its `TestCase`."""

    digests = Bundle("digests")

    def __init__(self) -> None:
        super().__init__()
        self.store = self.open_store()
        self.model: dict[str, bytes] = {}

    def open_store(self) -> BlobStore:
        """An empty store."""
        raise NotImplementedError

    @rule(target=digests, data=st.binary(max_size=64))
    def put(self, data: bytes) -> str:
        """Store bytes, new or not."""
        digest = self.store.put(data)
        self.model[digest] = data
        return digest

    @rule(digest=digests)
    def get(self, digest: str) -> None:
        """Read what is there, or not any more."""
        assert self.store.exists(digest) == (digest in self.model)
        if digest in self.model:
            assert self.store.get(digest) == self.model[digest]
        else:
            with pytest.raises(NotFound):
                self.store.get(digest)

    @rule(digest=consumes(digests))
    def delete(self, digest: str) -> None:
        """Remove it, whether or not it is still there."""
        self.store.delete(digest)
        self.model.pop(digest, None)

    @invariant()
    def lists_what_is_there(self) -> None:
        """The blobs are those of the model."""
        found = {blob.digest: blob.size for blob in self.store.iter_blobs()}
        assert found == {digest: len(data) for digest, data in self.model.items()}
