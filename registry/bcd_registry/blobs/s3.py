"""Blobs in a bucket of any S3 API: `prefix/ab/cd/abcd...`."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
from botocore import exceptions as boto
from botocore.config import Config

from bcd_registry.errors import BcdError, ConfigError, Conflict, NotFound, RegistryError, StoreDenied, StoreUnavailable
from bcd_registry.model import BlobInfo
from bcd_registry.urls import masked

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

_TAKEN = {404, 409, 412}
_DENIED = {401, 403}
_OVERLOADED = {429, 503}
_BUSY_CODES = {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded"}
_ELSEWHERE = {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_NO_BUCKET = "NoSuchBucket"
_NO_KEY = "NoSuchKey"
_MAY_NOT = "AccessDenied"
_NOBODYS_DIGEST = "0" * 64
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.SSOError,
)
_DENIED_HINTS = {
    "InvalidAccessKeyId": "the server does not know this access key: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret is not that of the access key: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session has expired: log in again",
    "RequestTimeTooSkewed": "set the clock of this machine",
}
_MAY_DO = "ask the bucket's owner for the right to it, or use `--read-only` if it is only to be read"
_MAX_CONNECTIONS = 32
_PUT_ROUNDS = 3


class S3Blobs:
    """A `BlobStore` in a bucket. Threads may share it; each process makes a client of its own.

    An object is made only where there is none (`If-None-Match: *`), so that no writer replaces what another one wrote, and
    carries its SHA-256, which the server checks. Credentials are found as boto3 does it: `AWS_*` variables, profiles, roles.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        path_style: bool = False,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 10.0,
        n_attempts: int = 3,
        max_blob_bytes: int = MAX_BLOB_BYTES,
        refresh_after_s: float = REFRESH_AFTER_S,
    ) -> None:
        """Use the bucket, without asking for it yet.

        Args:
            prefix: What all keys begin with, without slashes around it.
            endpoint_url: The server, when it is not Amazon's.
            path_style: Whether the bucket is named in the path and not in the host name.
            n_attempts: How often a request is sent at most, when the server does not answer or has too much to do.
            max_blob_bytes: What is larger is not stored, and damaged when it is there.
            refresh_after_s: How old a blob is when putting it again writes it again.
        """
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint_url = endpoint_url
        self._region = region
        self._connect_timeout_s = connect_timeout_s
        self._max_blob_bytes = max_blob_bytes
        self._refresh_after_s = refresh_after_s
        self._config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"mode": "standard", "total_max_attempts": n_attempts},
            s3={"addressing_style": "path" if path_style else "auto"},
            max_pool_connections=_MAX_CONNECTIONS,
            # Not every server knows the checksums that boto3 adds by itself; ours are SHA-256, and checked here when read.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self._clients: dict[int, tuple[boto3.Session, Any]] = {}

    def require_bucket(self) -> None:
        """Do nothing when the server answers and has the bucket: it is asked once, with the connect time-out for its answer.

        Whether this user may do anything there, and a server that has too much to do, are left to the calls to come.

        Raises:
            StoreUnavailable: It does not answer, or has no such bucket.
            StoreDenied: There are no credentials, or it does not know them.
        """
        once = Config(read_timeout=self._connect_timeout_s, retries={"mode": "standard", "total_max_attempts": 1})
        key = self._key(_NOBODYS_DIGEST)
        with self._errors("GET", key):
            session, _ = self._session_and_client()
            client = self._make_client(session, self._config.merge(once))
            try:
                with contextlib.closing(client):
                    client.get_object(Bucket=self._bucket, Key=key)["Body"].close()
            except boto.ClientError as error:
                code, status = _code(error), _status(error)
                answers = code in {_NO_KEY, _MAY_NOT, *_BUSY_CODES} or status in _OVERLOADED
                if not answers:
                    raise

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`."""
        digest = blob_digest(storable(data, self._max_blob_bytes))
        for _ in range(_PUT_ROUNDS):
            if self._create(digest, data) or self._holds(digest, data):
                return digest
        raise StoreUnavailable(
            f"S3 at {self._server()} neither takes blob {digest[:12]} nor has it in {self}",
            hint="check BCD_S3_ENDPOINT_URL, then run the command again",
        )

    def get(self, digest: str) -> bytes:
        """See `BlobStore.get`."""
        found = self._open(checked_digest(digest))
        if found is None:
            raise NotFound(f"no blob {digest[:12]} in {self}")
        return verified(self._read(found, digest), digest)

    def exists(self, digest: str) -> bool:
        """See `BlobStore.exists`."""
        key = self._key(checked_digest(digest))
        with self._errors("HEAD", key):
            try:
                self._client().head_object(Bucket=self._bucket, Key=key)
            except boto.ClientError as error:
                if _status(error) != 404:
                    raise
            else:
                return True
        # An answer to HEAD has no body that says whether it is the bucket which is missing.
        found = self._open(digest)
        if found is not None:
            found["Body"].close()
        return found is not None

    def delete(self, digest: str) -> None:
        """See `BlobStore.delete`."""
        key = self._key(checked_digest(digest))
        with self._errors("DELETE", key):
            try:
                self._client().delete_object(Bucket=self._bucket, Key=key)
            except boto.ClientError as error:
                if _code(error) != _NO_KEY:
                    raise

    def iter_blobs(self) -> Iterator[BlobInfo]:
        """See `BlobStore.iter_blobs`."""
        with self._errors("LIST", f"{self._prefix}*"):
            pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            for page in pages:
                for entry in page.get("Contents", ()):
                    digest = entry["Key"].rpartition("/")[2]
                    if is_digest(digest) and entry["Key"] == self._key(digest):
                        yield BlobInfo(digest, entry["Size"], entry["LastModified"].timestamp())

    def close(self) -> None:
        """Close this process's connections."""
        _, client = self._clients.pop(os.getpid(), (None, None))
        if client is not None:
            client.close()

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def _key(self, digest: str) -> str:
        return f"{self._prefix}{digest[:2]}/{digest[2:4]}/{digest}"

    def _create(self, digest: str, data: bytes) -> bool:
        """Make the object; False when there is one, or another writer is at it."""
        with self._errors("PUT", self._key(digest)):
            try:
                self._write(digest, data, IfNoneMatch="*")
            except boto.ClientError as error:
                if _status(error) in _TAKEN and _code(error) != _NO_BUCKET:
                    return False
                raise
        return True

    def _write(self, digest: str, data: bytes, **condition: str) -> None:
        checksum = base64.b64encode(bytes.fromhex(digest)).decode()
        self._client().put_object(Bucket=self._bucket, Key=self._key(digest), Body=data, ChecksumSHA256=checksum, **condition)

    def _holds(self, digest: str, data: bytes) -> bool:
        """Whether the bytes are there; then they count as put now."""
        found = self._open(digest)
        if found is None:
            return False
        if found.get("ContentLength", len(data)) != len(data):
            found["Body"].close()
            raise self._conflict(digest)
        if self._read(found, digest) != data:
            raise self._conflict(digest)
        if _age_s(found) > self._refresh_after_s:
            with self._errors("PUT", self._key(digest)):
                self._write(digest, data)
        return True

    def _open(self, digest: str) -> Any:
        """The answer to GET with its body unread, or None when nothing is there."""
        key = self._key(digest)
        with self._errors("GET", key):
            try:
                return self._client().get_object(Bucket=self._bucket, Key=key)
            except boto.ClientError as error:
                if _code(error) != _NO_KEY:
                    raise
        return None

    def _read(self, found: Any, digest: str) -> bytes:
        """The body, whole, unless it is too large."""
        n_bytes = found.get("ContentLength", 0)
        with contextlib.closing(found["Body"]) as body, self._errors("GET", self._key(digest)):
            require_readable(n_bytes, digest, self._max_blob_bytes)
            data: bytes = body.read(self._max_blob_bytes + 1)
        require_readable(len(data), digest, self._max_blob_bytes)
        if len(data) < n_bytes:
            raise StoreUnavailable(
                f"S3 at {self._server()} broke off after {len(data)} of {n_bytes} bytes of blob {digest[:12]}",
                hint="run the command again",
            )
        return data

    def _conflict(self, digest: str) -> Conflict:
        return Conflict(
            f"blob {digest[:12]} in {self} is damaged",
            hint=f"remove s3://{self._bucket}/{self._key(digest)}, then store it again",
        )

    def _client(self) -> Any:
        """This process's client. Two threads that make it at once keep one of the two."""
        return self._session_and_client()[1]

    def _session_and_client(self) -> tuple[boto3.Session, Any]:
        process = os.getpid()
        if process not in self._clients:
            session = boto3.Session()
            self._clients.setdefault(process, (session, self._make_client(session, self._config)))
        return self._clients[process]

    def _make_client(self, session: boto3.Session, config: Config) -> Any:
        return session.client("s3", endpoint_url=self._endpoint_url, region_name=self._region, config=config)

    def _server(self) -> str:
        with contextlib.suppress(boto.BotoCoreError):
            return masked(str(self._client().meta.endpoint_url))
        return masked(self._endpoint_url or "Amazon")

    def _access_key(self) -> str:
        """Which key signs, for messages; its secret is nowhere."""
        with contextlib.suppress(boto.BotoCoreError):
            credentials = self._session_and_client()[0].get_credentials()
            return credentials.access_key if credentials else "none"
        return "unknown"

    @contextlib.contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        """Turn boto's errors of the block into the registry's."""
        try:
            yield
        except boto.ClientError as error:
            raise self._refused(error, f"{verb} {key}") from error
        except boto.BotoCoreError as error:
            raise self._failed(error, f"{verb} {key}") from error

    def _refused(self, error: boto.ClientError, request: str) -> RegistryError:
        """What the server's answer means."""
        code, status, server = _code(error), _status(error), self._server()
        if code == _NO_BUCKET:
            hint = "make it, or correct BCD_BLOBS_URL or BCD_S3_ENDPOINT_URL"
            return StoreUnavailable(f"there is no bucket {self._bucket!r} at {server}", hint=hint)
        if code in _ELSEWHERE:
            return StoreUnavailable(f"bucket {self._bucket!r} is not in this region ({code})", hint="set BCD_S3_REGION")
        if status in _DENIED:
            who = f"S3 at {server} denies access key {self._access_key()} in bucket {self._bucket!r}"
            return StoreDenied(f"{who}: {request} ({code})", hint=_DENIED_HINTS.get(code, _MAY_DO))
        if status in _OVERLOADED or code in _BUSY_CODES:
            attempts = error.response["ResponseMetadata"].get("RetryAttempts", 0) + 1
            busy = f"S3 at {server} has too much to do: {request} ({code}, asked {attempts} times)"
            return StoreUnavailable(busy, hint="wait a little, then run the command again")
        return StoreUnavailable(f"S3 at {server} failed: {request} ({code}, status {status})", hint="see the server's log")

    def _failed(self, error: boto.BotoCoreError, request: str) -> BcdError:
        """What it means that there was no answer."""
        kind = type(error).__name__
        if isinstance(error, boto.ProfileNotFound):
            return ConfigError(f"boto3 has no profile for {self}", hint="check AWS_PROFILE")
        if isinstance(error, _NO_CREDENTIALS):
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            return StoreDenied(f"boto3 finds no credentials for {self} ({kind})", hint=hint)
        hint = "check BCD_S3_ENDPOINT_URL, the network, and that the server runs"
        return StoreUnavailable(f"S3 at {self._server()} does not answer: {request} ({kind})", hint=hint)


def _code(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _age_s(found: Any) -> float:
    """How long ago the object was written, by the server's own clock."""
    date = found["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        return float("inf")
    return float((parsedate_to_datetime(date) - found["LastModified"]).total_seconds())
