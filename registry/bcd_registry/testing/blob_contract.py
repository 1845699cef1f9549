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

Damage = Callable[[str, bytes], None]
"""Puts other bytes under a digest, past the store."""

ABSENT = "0" * 64


class BlobStoreContract:
    """Inherit it and give the fixtures `blobs`, an empty store, and `damage`, a raw accessor to the same bytes."""

    @pytest.fixture
    def blobs(self) -> BlobStore:
        """The empty store to test."""
        raise NotImplementedError

    @pytest.fixture
    def damage(self, blobs: BlobStore) -> Damage:
        """The way past the store."""
        raise NotImplementedError

    @pytest.mark.parametrize("data", [b"", b"abc", bytes(range(256)) * 4096])
    def test_reads_back_what_was_put_under_its_sha256(self, blobs: BlobStore, data: bytes) -> None:
        digest = blobs.put(data)
        assert digest == hashlib.sha256(data).hexdigest()
        assert blobs.get(digest) == data
        assert blobs.exists(digest)

    def test_putting_again_is_a_success(self, blobs: BlobStore) -> None:
        assert blobs.put(b"abc") == blobs.put(b"abc")
        assert list(blobs.iter_digests()) == [blobs.put(b"abc")]

    def test_what_is_not_there(self, blobs: BlobStore) -> None:
        assert not blobs.exists(ABSENT)
        blobs.delete(ABSENT)
        assert list(blobs.iter_digests()) == []
        with pytest.raises(NotFound, match=ABSENT[:12]):
            blobs.get(ABSENT)

    def test_deleting(self, blobs: BlobStore) -> None:
        digest = blobs.put(b"abc")
        blobs.delete(digest)
        blobs.delete(digest)
        assert not blobs.exists(digest)
        with pytest.raises(NotFound):
            blobs.get(digest)
        assert blobs.put(b"abc") == digest
        assert blobs.get(digest) == b"abc"

    @pytest.mark.parametrize("name", ["", "abc", "A" * 64, "g" * 64, "../" * 21 + "a", "a" * 63 + "\n", "a" * 65])
    def test_refuses_what_is_no_digest(self, blobs: BlobStore, name: str) -> None:
        for call in (blobs.get, blobs.exists, blobs.delete):
            with pytest.raises(ConfigError):
                call(name)

    @pytest.mark.parametrize("other", [b"", b"ab", b"abd", b"abcd"])
    def test_never_returns_damaged_bytes(self, blobs: BlobStore, damage: Damage, other: bytes) -> None:
        digest = blobs.put(b"abc")
        damage(digest, other)
        assert blobs.exists(digest)
        with pytest.raises(CorruptBlob, match=digest[:12]):
            blobs.get(digest)

    def test_putting_over_damaged_bytes_is_a_conflict(self, blobs: BlobStore, damage: Damage) -> None:
        digest = blobs.put(b"abc")
        damage(digest, b"abd")
        with pytest.raises(Conflict, match=digest[:12]):
            blobs.put(b"abc")
        blobs.delete(digest)
        assert blobs.get(blobs.put(b"abc")) == b"abc"

    def test_threads_may_share_it(self, blobs: BlobStore) -> None:
        data = [bytes([i % 8]) * 1000 for i in range(64)]
        with ThreadPoolExecutor(8) as pool:
            digests = list(pool.map(blobs.put, data))
            assert list(pool.map(blobs.get, digests)) == data
        assert sorted(blobs.iter_digests()) == sorted(set(digests))


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
        """The digests are those of the model."""
        assert sorted(self.store.iter_digests()) == sorted(self.model)
