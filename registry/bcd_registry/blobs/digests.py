"""Names of blobs: the SHA-256 digest of their own bytes."""

from __future__ import annotations

import hashlib
import re

from bcd_registry.errors import ConfigError, CorruptBlob

_DIGEST = re.compile(r"[0-9a-f]{64}")


def blob_digest(data: bytes) -> str:
    """Hex SHA-256 of the bytes."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether `text` has the form of a digest: 64 lower-case hex digits."""
    return _DIGEST.fullmatch(text) is not None


def checked_digest(digest: str) -> str:
    """The digest itself.

    Raises:
        ConfigError: It is not 64 lower-case hex digits, and might even be a path.
    """
    if not is_digest(digest):
        raise ConfigError(f"not a blob digest: {digest[:80]!r}", hint="a digest has 64 lower-case hex digits")
    return digest


def verified(data: bytes, digest: str) -> bytes:
    """The bytes themselves.

    Raises:
        CorruptBlob: They do not have that digest.
    """
    found = blob_digest(data)
    if found != digest:
        raise CorruptBlob(
            f"blob {digest[:12]} is damaged: its {len(data)} bytes have the digest {found[:12]}",
            hint="tune again to replace it",
        )
    return data
