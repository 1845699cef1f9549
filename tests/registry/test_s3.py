"""Blobs in a bucket of a real S3 server; what only a broken server does, one of ours says."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from bcd_registry.blobs.digests import blob_digest
from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.blobs.s3 import S3Blobs
from bcd_registry.blobs.wrappers import TieredBlobs
from bcd_registry.errors import (
    BcdError,
    ConfigError,
    Conflict,
    CorruptBlob,
    NotFound,
    RegistryError,
    StoreDenied,
    StoreUnavailable,
)
from bcd_registry.ports import BlobStore
from bcd_registry.testing.blob_contract import ABSENT, Age, BlobStoreContract, BlobStoreMachine, Plant, listed
from bcd_registry.urls import BucketUrl, parse_blobs_url
from infra.local_stack import LocalStack

Open = Callable[..., S3Blobs]
Serve = Callable[..., str]
CALLS: tuple[Callable[[BlobStore], object], ...] = (
    lambda blobs: blobs.put(b"abc"),
    lambda blobs: blobs.get(ABSENT),
    lambda blobs: blobs.exists(ABSENT),
    lambda blobs: blobs.delete(ABSENT),
    lambda blobs: list(blobs.iter_blobs()),
)
FAKE_SECRET = "wJalrXUtnFEMIthesecretKEY"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """None of the developer's own."""
    for name in (
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some, for servers that do not look at them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "TUNERKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", FAKE_SECRET)


@pytest.fixture
def place(stack: LocalStack, s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> BucketUrl:
    """An empty prefix, and the right to it."""
    for name, value in stack.identity.s3_credentials.items():
        monkeypatch.setenv(name, value)
    place = parse_blobs_url(s3_prefix)
    assert isinstance(place, BucketUrl)
    return place


@pytest.fixture
def open_blobs(stack: LocalStack, place: BucketUrl) -> Iterator[Open]:
    """Opens the prefix, or something else, as told."""
    with contextlib.ExitStack() as opened:

        def open_one(bucket: str = place.bucket, prefix: str = place.prefix, **options: Any) -> S3Blobs:
            options = {"endpoint_url": stack.identity.s3_endpoint, "path_style": True, **options}
            return opened.enter_context(contextlib.closing(S3Blobs(bucket, prefix, **options)))

        yield open_one


@pytest.fixture
def blobs(open_blobs: Open) -> S3Blobs:
    return open_blobs()


def plant_object(blobs: S3Blobs, key: str, data: bytes) -> None:
    blobs._client().put_object(Bucket=blobs._bucket, Key=key, Body=data)


def requests_of(blobs: S3Blobs) -> list[str]:
    """The requests that are sent from now on."""
    seen: list[str] = []

    def note(request: Any, **_: object) -> None:
        seen.append(request.method)

    blobs._client().meta.events.register("before-send.s3", note)
    return seen


class TestS3Blobs(BlobStoreContract):
    @pytest.fixture
    def blobs(self, open_blobs: Open) -> S3Blobs:
        return open_blobs(refresh_after_s=0.0)

    @pytest.fixture
    def plant(self, blobs: S3Blobs) -> Plant:
        return lambda digest, data: plant_object(blobs, blobs._key(digest), data)

    @pytest.fixture
    def age(self, blobs: S3Blobs) -> Age:
        return lambda digest: wait_for_another_second(blobs, digest)


class TestTieredBlobsOverS3(BlobStoreContract):
    @pytest.fixture
    def remote(self, open_blobs: Open) -> S3Blobs:
        return open_blobs(refresh_after_s=0.0)

    @pytest.fixture
    def local(self) -> MemoryBlobs:
        return MemoryBlobs()

    @pytest.fixture
    def blobs(self, local: MemoryBlobs, remote: S3Blobs) -> TieredBlobs:
        return TieredBlobs(local, remote, capacity_bytes=1 << 20)

    @pytest.fixture
    def plant(self, local: MemoryBlobs, remote: S3Blobs) -> Plant:
        def write(digest: str, data: bytes) -> None:
            local._blobs.pop(digest, None)
            plant_object(remote, remote._key(digest), data)

        return write

    @pytest.fixture
    def age(self, remote: S3Blobs) -> Age:
        return lambda digest: wait_for_another_second(remote, digest)


def wait_for_another_second(blobs: S3Blobs, digest: str) -> None:
    """Ask until the server's clock, which tells seconds, has moved on: nobody can set an object's date."""
    while True:
        found = blobs._client().get_object(Bucket=blobs._bucket, Key=blobs._key(digest))
        found["Body"].close()
        date = time.mktime(time.strptime(found["ResponseMetadata"]["HTTPHeaders"]["date"], "%a, %d %b %Y %H:%M:%S GMT"))
        if date > time.mktime(found["LastModified"].timetuple()):
            return


@pytest.mark.parametrize("tiered", [False, True])
def test_any_sequence_of_calls(open_blobs: Open, place: BucketUrl, tiered: bool) -> None:
    numbers = itertools.count()

    class Machine(BlobStoreMachine):
        def open_store(self) -> BlobStore:
            remote = open_blobs(prefix=f"{place.prefix}/{next(numbers)}")
            return TieredBlobs(MemoryBlobs(), remote, capacity_bytes=100) if tiered else remote

    health = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=4, stateful_step_count=12, deadline=None, suppress_health_check=health)
    )


def test_objects_lie_two_levels_deep_below_the_prefix(blobs: S3Blobs, place: BucketUrl) -> None:
    digest = blobs.put(b"abc")
    found = blobs._client().list_objects_v2(Bucket=place.bucket, Prefix=place.prefix)
    assert [entry["Key"] for entry in found["Contents"]] == [f"{place.prefix}/{digest[:2]}/{digest[2:4]}/{digest}"]


def test_a_prefix_may_be_empty(open_blobs: Open) -> None:
    blobs = open_blobs(prefix="")
    digest = blobs.put(b"at the root of the bucket")
    assert blobs._key(digest) == f"{digest[:2]}/{digest[2:4]}/{digest}"
    assert listed(blobs) == [digest]
    blobs.delete(digest)
    assert listed(blobs) == []


def test_only_blobs_of_this_prefix_are_listed(blobs: S3Blobs, open_blobs: Open, place: BucketUrl) -> None:
    digest = blobs.put(b"abc")
    open_blobs(prefix=f"{place.prefix}2").put(b"neighbour")
    for key in ("README", f"{ABSENT[:2]}/{ABSENT[:2]}/note", f"ff/ff/{ABSENT}", ABSENT):
        plant_object(blobs, f"{place.prefix}/{key}", b"mine")
    assert listed(blobs) == [digest]


def test_more_blobs_than_one_answer_lists(blobs: S3Blobs) -> None:
    names = {f"{i:064x}" for i in range(1005)}
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda name: plant_object(blobs, blobs._key(name), b""), names):
            pass
    assert {blob.digest for blob in blobs.iter_blobs()} == names


def test_what_was_put_within_the_hour_is_not_sent_again(blobs: S3Blobs) -> None:
    digest = blobs.put(b"abc")
    seen = requests_of(blobs)
    assert blobs.put(b"abc") == digest
    assert seen == ["PUT", "GET"]  # refused, then compared


def test_writers_of_one_blob_do_not_disturb_each_other(open_blobs: Open) -> None:
    stores = [open_blobs() for _ in range(4)]
    for i in range(10):
        data = bytes([i]) * 5000
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda blobs, data=data: blobs.put(data), stores)) == {blob_digest(data)}
        assert stores[0].get(blob_digest(data)) == data


def test_other_bytes_are_a_conflict_that_names_the_object(blobs: S3Blobs) -> None:
    digest = blobs.put(b"abc")
    plant_object(blobs, blobs._key(digest), b"abd")
    with pytest.raises(Conflict, match="is damaged") as caught:
        blobs.put(b"abc")
    assert f"s3://{blobs._bucket}/{blobs._key(digest)}" in caught.value.hint


def test_what_is_larger_than_any_blob_is_not_read_and_not_stored(open_blobs: Open) -> None:
    blobs = open_blobs(max_blob_bytes=1000)
    digest = blob_digest(b"abc")
    plant_object(blobs, blobs._key(digest), bytes(1001))
    with pytest.raises(CorruptBlob, match="it has 1001 bytes, and at most 1000 are read"):
        blobs.get(digest)
    with pytest.raises(Conflict):
        blobs.put(b"abc")
    with pytest.raises(ConfigError, match="too many"):
        blobs.put(bytes(1001))


def test_a_child_process_makes_its_own_client(blobs: S3Blobs, stack: LocalStack, place: BucketUrl) -> None:
    program = (
        "import os, sys; from bcd_registry.blobs.s3 import S3Blobs\n"
        "blobs = S3Blobs(sys.argv[1], sys.argv[2], endpoint_url=sys.argv[3], path_style=True)\n"
        "ours = blobs._client(); digest = blobs.put(b'parent')\n"
        "child = os.fork()\n"
        "for i in range(20): assert blobs.get(digest) == b'parent'\n"
        "if not child: os._exit(0 if blobs._client() is not ours and blobs.put(b'child') else 1)\n"
        "assert blobs._client() is ours; blobs.close(); sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    command = [sys.executable, "-c", program, place.bucket, place.prefix, stack.identity.s3_endpoint]
    subprocess.run(command, check=True, timeout=60)
    assert listed(blobs) == sorted(map(blob_digest, (b"parent", b"child")))


def test_closing_twice_and_before_use_is_free(open_blobs: Open) -> None:
    blobs = open_blobs()
    blobs.close()
    blobs.put(b"abc")
    blobs.close()
    blobs.close()


def check_message(error: BcdError, *words: str, secrets: tuple[str, ...] = ()) -> None:
    """One line, a hint, and no secret anywhere."""
    text = f"{error.message}\n{error.hint}\n{error!r}"
    assert "\n" not in error.message
    assert error.hint
    assert [word for word in words if word not in text] == []
    assert [secret for secret in secrets if secret in text] == []


def errors_of(blobs: BlobStore, kind: type[BcdError] = StoreUnavailable) -> list[BcdError]:
    """What each call ends with."""
    found: list[BcdError] = []
    for call in CALLS:
        with pytest.raises(kind) as caught:
            call(blobs)
        found.append(caught.value)
    return found


def test_a_missing_bucket_is_no_miss(open_blobs: Open, stack: LocalStack) -> None:
    for error in errors_of(open_blobs(bucket="nobodys-bucket")):
        check_message(error, "there is no bucket 'nobodys-bucket'", stack.identity.s3_endpoint, "BCD_BLOBS_URL")


def test_a_wrong_secret(
    open_blobs: Open, stack: LocalStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", FAKE_SECRET)
    blobs, secrets = open_blobs(), (FAKE_SECRET, stack.identity.secret_key)
    with caplog.at_level(logging.DEBUG, "bcd_registry"):
        for error in errors_of(blobs, StoreDenied):
            check_message(error, stack.identity.access_key, blobs._bucket, blobs._prefix, secrets=secrets)
    assert FAKE_SECRET not in caplog.text


def test_an_unknown_access_key(open_blobs: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NOBODYSKEY")
    with pytest.raises(StoreDenied, match="denies access key NOBODYSKEY") as caught:
        open_blobs().get(ABSENT)
    check_message(caught.value, "AWS_ACCESS_KEY_ID")


def test_no_credentials_at_all() -> None:
    with contextlib.closing(S3Blobs("bucket", endpoint_url="http://127.0.0.1:1")) as blobs:
        for error in errors_of(blobs, StoreDenied):
            check_message(error, "no credentials", "s3://bucket", "AWS_ACCESS_KEY_ID")


def test_an_unknown_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="no profile") as caught:
        S3Blobs("bucket").get(ABSENT)
    check_message(caught.value, "AWS_PROFILE")


def test_nobody_listens(credentials: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with contextlib.closing(S3Blobs("bucket", endpoint_url=endpoint, path_style=True, n_attempts=1)) as blobs:
            for error in errors_of(blobs):
                check_message(error, "does not answer", endpoint, "BCD_S3_ENDPOINT_URL", secrets=(FAKE_SECRET,))


def test_a_server_that_never_answers(credentials: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        blobs = S3Blobs("bucket", endpoint_url=endpoint, path_style=True, read_timeout_s=0.3, n_attempts=1)
        began = time.monotonic()
        with contextlib.closing(blobs), pytest.raises(StoreUnavailable, match="does not answer"):
            blobs.get(ABSENT)
        assert time.monotonic() - began < 5


def test_the_server_is_killed_and_comes_back(open_blobs: Open, stack: LocalStack) -> None:
    blobs = open_blobs(read_timeout_s=60.0)  # for some seconds after its start it takes objects, but has no place for them yet
    digest = blobs.put(b"before")
    stack.s3.kill()
    hasty = open_blobs(n_attempts=1)
    for error in errors_of(hasty):
        check_message(error, stack.identity.s3_endpoint)
    stack.s3.start()
    assert blobs.get(digest) == b"before"
    assert hasty.get(blobs.put(b"after")) == b"after"


@pytest.fixture
def serve(credentials: None) -> Iterator[Serve]:
    """Starts a server that gives one answer to whatever it is asked; returns its URL."""
    with contextlib.ExitStack() as opened:

        def start(status: int, body: bytes = b"", **headers: str) -> str:
            class Handler(BaseHTTPRequestHandler):
                protocol_version = "HTTP/1.1"

                def answer(self) -> None:
                    self.rfile.read(int(self.headers.get("Content-Length", 0)))
                    self.send_response(status)
                    for name, value in {"Content_Length": str(len(body)), "Connection": "close", **headers}.items():
                        self.send_header(name.replace("_", "-"), value)
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(body)

                do_GET = do_PUT = do_HEAD = do_DELETE = answer  # noqa: N815 - the library's names

                def log_message(self, *_: object) -> None:
                    pass

            server = opened.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            opened.callback(thread.join)
            opened.callback(server.shutdown)
            thread.start()
            return f"http://127.0.0.1:{server.server_port}"

        yield start


@pytest.fixture
def open_bad(serve: Serve) -> Iterator[Open]:
    """Blobs at a server that gives one answer."""
    with contextlib.ExitStack() as opened:

        def open_one(status: int, body: bytes = b"", n_attempts: int = 1, **headers: str) -> S3Blobs:
            blobs = S3Blobs(
                "bucket", "team", endpoint_url=serve(status, body, **headers), path_style=True, n_attempts=n_attempts
            )
            return opened.enter_context(contextlib.closing(blobs))

        yield open_one


def xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()


def test_a_server_with_too_much_to_do(open_bad: Open) -> None:
    blobs = open_bad(503, xml("SlowDown"), n_attempts=2)
    with pytest.raises(StoreUnavailable) as caught:
        blobs.get(ABSENT)
    check_message(caught.value, "has too much to do", "asked 2 times", "wait", secrets=(FAKE_SECRET,))
    for error in errors_of(open_bad(429, xml("TooManyRequests"))):
        check_message(error, "has too much to do")


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (400, "EntityTooLarge"), (501, "NotImplemented")])
def test_a_server_that_fails(open_bad: Open, status: int, code: str) -> None:
    for error in errors_of(open_bad(status, xml(code))):
        check_message(error, "failed: ", f"status {status}")


def test_a_server_of_something_else_is_no_miss(open_bad: Open) -> None:
    for error in errors_of(open_bad(404, b"<html>nothing here</html>")):
        check_message(error, "127.0.0.1")


@pytest.mark.parametrize("status", [404, 409, 412])
def test_a_blob_that_is_taken_and_never_there(open_bad: Open, status: int) -> None:
    with pytest.raises(RegistryError) as caught:
        open_bad(status, xml("NoSuchKey")).put(b"abc")
    assert not isinstance(caught.value, NotFound)


def test_a_bucket_in_another_region(open_bad: Open) -> None:
    with pytest.raises(StoreUnavailable, match="not in this region") as caught:
        open_bad(400, xml("IllegalLocationConstraintException")).get(ABSENT)
    check_message(caught.value, "BCD_S3_REGION")


def test_a_body_that_breaks_off_is_not_damage(open_bad: Open) -> None:
    blobs = open_bad(200, b"ab", Content_Length="100", Last_Modified="Tue, 01 Dec 2026 10:00:00 GMT")
    with pytest.raises(StoreUnavailable):
        blobs.get(blob_digest(b"ab"))


def test_two_gigabytes_are_refused_unread(open_bad: Open) -> None:
    blobs = open_bad(200, b"ab", Content_Length=str(2 << 30), Last_Modified="Tue, 01 Dec 2026 10:00:00 GMT")
    with pytest.raises(CorruptBlob, match=f"it has {2 << 30} bytes"):
        blobs.get(blob_digest(b"ab"))
