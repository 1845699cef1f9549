"""The stores around stores pass the contract too, and do what they are for."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from bcd_registry.blobs.digests import blob_digest
from bcd_registry.blobs.ledger import SizeLedger
from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.blobs.wrappers import ReadOnlyBlobs, TieredBlobs, VerifyingBlobs
from bcd_registry.errors import Conflict, CorruptBlob, NotFound, StoreDenied, StoreUnavailable
from bcd_registry.model import BlobInfo
from bcd_registry.testing.blob_contract import (
    Age,
    BlobReadsContract,
    BlobStoreContract,
    BlobStoreMachine,
    Plant,
    listed,
)

OLD_S = 7200.0
MANY_BYTES = 1 << 30


class TrustingBlobs:
    """Somebody else's store: it knows nothing of digests, and believes what it holds."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.clock = itertools.count(1e9)

    def put(self, data: bytes) -> str:
        digest = blob_digest(data)
        self.blobs[digest] = data
        self.times[digest] = next(self.clock)
        return digest

    def get(self, digest: str) -> bytes:
        if digest not in self.blobs:
            raise NotFound(f"no blob {digest[:12]}")
        return self.blobs[digest]

    def exists(self, digest: str) -> bool:
        return digest in self.blobs

    def delete(self, digest: str) -> None:
        self.blobs.pop(digest, None)

    def iter_blobs(self) -> Iterator[BlobInfo]:
        for digest, data in list(self.blobs.items()):
            yield BlobInfo(digest, len(data), self.times.get(digest, 0.0))


class CountingBlobs(MemoryBlobs):
    """A remote store that remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def put(self, data: bytes) -> str:
        self.calls.append("put")
        return super().put(data)

    def get(self, digest: str) -> bytes:
        self.calls.append("get")
        return super().get(digest)

    def delete(self, digest: str) -> None:
        self.calls.append("delete")
        super().delete(digest)


class BrokenBlobs(MemoryBlobs):
    """A folder that cannot be used."""

    def put(self, data: bytes) -> str:
        raise StoreUnavailable("no space left")

    def get(self, digest: str) -> bytes:
        raise StoreDenied("no permission")

    def delete(self, digest: str) -> None:
        raise StoreDenied("no permission")


def set_back(blobs: MemoryBlobs) -> Age:
    return lambda digest: blobs._modified_at.__setitem__(digest, blobs._modified_at[digest] - OLD_S)


class TestReadOnlyBlobs(BlobReadsContract):
    @pytest.fixture
    def inner(self) -> CountingBlobs:
        return CountingBlobs()

    @pytest.fixture
    def blobs(self, inner: CountingBlobs) -> ReadOnlyBlobs:
        return ReadOnlyBlobs(inner)

    @pytest.fixture
    def plant(self, inner: CountingBlobs) -> Plant:
        return inner._blobs.__setitem__

    @pytest.mark.parametrize("data", [b"there", b"not there"])
    def test_writes_are_refused_before_the_store_is_asked(
        self, blobs: ReadOnlyBlobs, inner: CountingBlobs, data: bytes
    ) -> None:
        inner.put(b"there")
        inner.calls.clear()
        for call in (lambda: blobs.put(data), lambda: blobs.delete(blob_digest(data))):
            with pytest.raises(StoreDenied, match="read-only") as caught:
                call()
            assert "--read-only" in caught.value.hint
        assert inner.calls == []
        assert listed(blobs) == [blob_digest(b"there")]


class TestVerifyingBlobs(BlobStoreContract):
    @pytest.fixture
    def inner(self) -> TrustingBlobs:
        return TrustingBlobs()

    @pytest.fixture
    def blobs(self, inner: TrustingBlobs) -> VerifyingBlobs:
        return VerifyingBlobs(inner)

    @pytest.fixture
    def plant(self, inner: TrustingBlobs) -> Plant:
        return inner.blobs.__setitem__

    @pytest.fixture
    def age(self, inner: TrustingBlobs) -> Age:
        return lambda digest: inner.times.__setitem__(digest, 0.0)

    def test_other_names_are_not_listed(self, blobs: VerifyingBlobs, inner: TrustingBlobs) -> None:
        digest = blobs.put(b"abc")
        inner.blobs["../../etc/passwd"] = b"x"
        assert listed(blobs) == [digest]

    def test_a_store_that_names_blobs_as_it_likes(self) -> None:
        class Renaming(TrustingBlobs):
            def put(self, data: bytes) -> str:
                return "../" + super().put(data)

        with pytest.raises(CorruptBlob, match="under another name"):
            VerifyingBlobs(Renaming()).put(b"abc")

    def test_a_store_that_finds_its_own_damage(self) -> None:
        inner = MemoryBlobs()
        inner._blobs[blob_digest(b"abc")] = b"abd"
        with pytest.raises(Conflict):
            VerifyingBlobs(inner).put(b"abc")


class TestVerifyingBlobsOverMemory(BlobStoreContract):
    @pytest.fixture
    def inner(self) -> MemoryBlobs:
        return MemoryBlobs()

    @pytest.fixture
    def blobs(self, inner: MemoryBlobs) -> VerifyingBlobs:
        return VerifyingBlobs(inner)

    @pytest.fixture
    def plant(self, inner: MemoryBlobs) -> Plant:
        return inner._blobs.__setitem__

    @pytest.fixture
    def age(self, inner: MemoryBlobs) -> Age:
        return set_back(inner)


class TestTieredBlobs(BlobStoreContract):
    """With copies, and without a usable place for them: nobody sees a difference."""

    @pytest.fixture(params=[MANY_BYTES, 10_000, 0, "broken"])
    def capacity(self, request: pytest.FixtureRequest) -> int | str:
        return request.param  # type: ignore[no-any-return]

    @pytest.fixture
    def remote(self) -> MemoryBlobs:
        return MemoryBlobs()

    @pytest.fixture
    def local(self, capacity: int | str, tmp_path: Path) -> LocalBlobs | BrokenBlobs:
        return BrokenBlobs() if isinstance(capacity, str) else LocalBlobs(tmp_path / "copies")

    @pytest.fixture
    def blobs(self, local: LocalBlobs | BrokenBlobs, remote: MemoryBlobs, capacity: int | str) -> TieredBlobs:
        return TieredBlobs(local, remote, capacity_bytes=MANY_BYTES if isinstance(capacity, str) else capacity)

    @pytest.fixture
    def plant(self, local: LocalBlobs | BrokenBlobs, remote: MemoryBlobs) -> Plant:
        def write(digest: str, data: bytes) -> None:
            remote._blobs[digest] = data
            if isinstance(local, LocalBlobs) and local.exists(digest):
                local._path(digest).write_bytes(data)

        return write

    @pytest.fixture
    def age(self, remote: MemoryBlobs) -> Age:
        return set_back(remote)


@pytest.fixture
def local(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "copies")


@pytest.fixture
def remote() -> CountingBlobs:
    return CountingBlobs()


@pytest.fixture
def tiered(local: LocalBlobs, remote: CountingBlobs) -> TieredBlobs:
    return TieredBlobs(local, remote, capacity_bytes=MANY_BYTES)


def test_the_second_read_does_not_ask_the_remote_store(tiered: TieredBlobs, remote: CountingBlobs) -> None:
    digest = MemoryBlobs.put(remote, b"abc")
    assert [tiered.get(digest) for _ in range(3)] == [b"abc"] * 3
    assert remote.calls == ["get"]


def test_what_was_put_is_read_from_the_copy(tiered: TieredBlobs, remote: CountingBlobs, local: LocalBlobs) -> None:
    digest = tiered.put(b"abc")
    assert tiered.get(digest) == b"abc"
    assert remote.calls == ["put"]
    assert TieredBlobs(local, remote, capacity_bytes=MANY_BYTES).get(digest) == b"abc"
    assert remote.calls == ["put"]


def test_a_damaged_copy_is_dropped_and_fetched_anew(
    tiered: TieredBlobs, remote: CountingBlobs, local: LocalBlobs, caplog: pytest.LogCaptureFixture
) -> None:
    digest = tiered.put(b"abc")
    local._path(digest).write_bytes(b"abd")
    assert [tiered.get(digest), tiered.get(digest)] == [b"abc", b"abc"]
    assert remote.calls == ["put", "get"]
    assert local.get(digest) == b"abc"
    assert "fetched anew" in caplog.text


def test_putting_mends_a_damaged_copy(tiered: TieredBlobs, local: LocalBlobs) -> None:
    digest = tiered.put(b"abc")
    local._path(digest).write_bytes(b"abd")
    tiered.put(b"abc")
    assert local.get(digest) == b"abc"


def test_damage_in_the_remote_store_is_not_copied(tiered: TieredBlobs, remote: CountingBlobs, local: LocalBlobs) -> None:
    digest = blob_digest(b"abc")
    remote._blobs[digest] = b"abd"
    with pytest.raises(CorruptBlob):
        tiered.get(digest)
    assert not local.exists(digest)


def test_what_the_remote_store_does_not_take_is_not_copied(local: LocalBlobs) -> None:
    tiered = TieredBlobs(local, BrokenBlobs(), capacity_bytes=MANY_BYTES)
    with pytest.raises(StoreUnavailable):
        tiered.put(b"abc")
    assert listed(local) == []


def test_copies_serve_while_the_remote_store_does_not_answer(local: LocalBlobs) -> None:
    digest = local.put(b"abc")
    assert TieredBlobs(local, BrokenBlobs(), capacity_bytes=MANY_BYTES).get(digest) == b"abc"


def test_a_copy_that_cannot_be_touched_serves_all_the_same(local: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = local.put(b"abc")

    def denied(data: bytes) -> str:
        raise StoreDenied("no permission")

    monkeypatch.setattr(local, "put", denied)
    assert TieredBlobs(local, BrokenBlobs(), capacity_bytes=MANY_BYTES).get(digest) == b"abc"


def _sizes(blobs: LocalBlobs) -> int:
    return sum(blob.size for blob in blobs.iter_blobs())


def test_the_copies_stay_within_their_size_and_the_least_used_go_first(local: LocalBlobs, remote: CountingBlobs) -> None:
    clock = itertools.count(2e9)
    tiered = TieredBlobs(local, remote, capacity_bytes=10_000, clock=lambda: next(clock))
    digests = [tiered.put(bytes([i]) * 1000) for i in range(10)]
    tiered.get(digests[0])
    more = [tiered.put(bytes([100 + i]) * 1000) for i in range(3)]
    assert _sizes(local) <= 10_000
    assert local.exists(digests[0])
    assert all(local.exists(digest) for digest in more)
    assert not local.exists(digests[1])
    assert len(listed(tiered)) == 13
    assert all(tiered.get(digest) for digest in digests)
    assert _sizes(local) <= 10_000


def test_use_by_an_earlier_process_counts(local: LocalBlobs, remote: CountingBlobs) -> None:
    digests = [remote.put(bytes([i]) * 1000) for i in range(3)]
    earlier = TieredBlobs(local, remote, capacity_bytes=3000)
    for digest in digests:
        earlier.get(digest)
        os.utime(local._path(digest), (1e9, 1e9))
    TieredBlobs(local, remote, capacity_bytes=3000).get(digests[0])
    TieredBlobs(local, remote, capacity_bytes=3000).put(bytes(500))
    assert local.exists(digests[0])
    assert _sizes(local) <= 3000


def test_what_is_larger_than_all_copies_may_be_is_not_copied(local: LocalBlobs, remote: CountingBlobs) -> None:
    tiered = TieredBlobs(local, remote, capacity_bytes=1000)
    small, large = tiered.put(b"small"), tiered.put(bytes(1001))
    assert listed(local) == [small]
    assert len(tiered.get(large)) == 1001


def test_one_copy_may_take_all_the_room(local: LocalBlobs, remote: CountingBlobs) -> None:
    tiered = TieredBlobs(local, remote, capacity_bytes=1000)
    tiered.put(b"small")
    large = tiered.put(bytes(1000))
    assert listed(local) == [large]


class VerifyingMachine(BlobStoreMachine):
    def open_store(self) -> VerifyingBlobs:
        return VerifyingBlobs(TrustingBlobs())


class TieredMachine(BlobStoreMachine):
    def open_store(self) -> TieredBlobs:
        return TieredBlobs(MemoryBlobs(), MemoryBlobs(), capacity_bytes=100)


class DamagedCopiesMachine(BlobStoreMachine):
    """Copies are damaged and lost at any time: nobody sees it."""

    def open_store(self) -> TieredBlobs:
        self.local = MemoryBlobs()
        return TieredBlobs(self.local, MemoryBlobs(), capacity_bytes=100)

    @rule(other=st.binary(max_size=64), which=st.integers(0, 10))
    def damage(self, other: bytes, which: int) -> None:
        """Put other bytes into a copy."""
        for digest in list(self.local._blobs)[which : which + 1]:
            self.local._blobs[digest] = other

    @rule(which=st.integers(0, 10))
    def lose(self, which: int) -> None:
        """Delete a copy."""
        for digest in list(self.local._blobs)[which : which + 1]:
            self.local.delete(digest)


class ReadOnlyMachine(RuleBasedStateMachine):
    """Somebody else writes; the reader sees it, and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MemoryBlobs()
        self.store = ReadOnlyBlobs(self.inner)

    @rule(data=st.binary(max_size=8))
    def somebody_puts(self, data: bytes) -> None:
        """A blob appears."""
        assert self.store.get(self.inner.put(data)) == data

    @rule(data=st.binary(max_size=8), write=st.booleans())
    def refuses(self, data: bytes, write: bool) -> None:
        """A write changes nothing."""
        before = dict(self.inner._blobs)
        call: Callable[[], object] = (lambda: self.store.put(data)) if write else (lambda: self.store.delete(blob_digest(data)))
        with pytest.raises(StoreDenied):
            call()
        assert self.inner._blobs == before
        assert listed(self.store) == sorted(before)


TestVerifyingMachine = VerifyingMachine.TestCase
TestVerifyingMachine.settings = settings(max_examples=20, deadline=None)
TestTieredMachine = TieredMachine.TestCase
TestTieredMachine.settings = settings(max_examples=30, deadline=None)
TestDamagedCopiesMachine = DamagedCopiesMachine.TestCase
TestDamagedCopiesMachine.settings = settings(max_examples=30, deadline=None)
TestReadOnlyMachine = ReadOnlyMachine.TestCase
TestReadOnlyMachine.settings = settings(max_examples=10, deadline=None)


class Listed(LocalBlobs):
    """Remembers how often its files were looked at."""

    n_listings = 0

    def iter_blobs(self) -> Iterator[BlobInfo]:
        self.n_listings += 1
        return super().iter_blobs()


@pytest.fixture
def reopen(tmp_path: Path, remote: CountingBlobs) -> Callable[[], tuple[TieredBlobs, Listed]]:
    """Another process with the same copies."""

    def opened() -> tuple[TieredBlobs, Listed]:
        copies = Listed(tmp_path / "copies")
        return TieredBlobs(copies, remote, capacity_bytes=10_000, ledger=SizeLedger(tmp_path / "copies" / "size")), copies

    return opened


Reopen = Callable[[], tuple[TieredBlobs, Listed]]


def test_the_copies_are_counted_once_and_not_by_each_process(reopen: Reopen) -> None:
    listings = []
    for i in range(4):
        tiered, copies = reopen()
        tiered.put(bytes([i]) * 1000)
        tiered.put(bytes([100 + i]) * 1000)
        listings.append(copies.n_listings)
    assert listings == [1, 0, 0, 0]
    assert len(listed(copies)) == 8


def test_processes_that_put_little_keep_to_the_size_together(reopen: Reopen) -> None:
    for i in range(30):
        tiered, copies = reopen()
        tiered.put(bytes([i]) * 1000)
        assert _sizes(copies) <= 10_000


@pytest.mark.parametrize("damage", ["", "many", "12 3.5"])
def test_a_damaged_ledger_is_made_anew(reopen: Reopen, tmp_path: Path, damage: str) -> None:
    reopen()[0].put(bytes(9000))
    (tmp_path / "copies" / "size").write_text(damage)
    for i in range(3):
        tiered, copies = reopen()
        tiered.put(bytes([1 + i]) * 3000)
    assert _sizes(copies) <= 10_000


def test_without_a_ledger_nothing_is_noted_until_somebody_counts(tmp_path: Path) -> None:
    ledger = SizeLedger(tmp_path / "size")
    ledger.add(7)
    assert ledger.read() is None
    ledger.replace(10)
    ledger.add(7)
    assert SizeLedger(tmp_path / "size").read() == 17
    nowhere = SizeLedger(tmp_path / "none" / "size")
    nowhere.replace(1)
    assert nowhere.read() is None
