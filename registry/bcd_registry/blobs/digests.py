"""Names of blobs: the SHA-256 digest of their own bytes."""

from __future__ import annotations

import hashlib
import re

from bcd_registry.errors import ConfigError, CorruptBlob

MAX_BLOB_BYTES = 256 << 20
"""What is larger is neither stored nor read: traces have some 20 KB, cost models some MB."""

REFRESH_AFTER_S = 3600.0
"""How old a blob may be before putting it again makes it new, see `BlobStore.put`."""

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


def storable(data: bytes, max_bytes: int) -> bytes:
    """The bytes themselves.

    Raises:
        ConfigError: They are more than a store will read again.
    """
    if len(data) > max_bytes:
        raise ConfigError(f"{len(data)} bytes are too many for one blob", hint=f"a blob has at most {max_bytes} bytes")
    return data


def require_readable(n_bytes: int, digest: str, max_bytes: int) -> None:
    """Do nothing when a blob of so many bytes may be read.

    Raises:
        CorruptBlob: No blob of ours is that large.
    """
    if n_bytes > max_bytes:
        raise CorruptBlob(
            f"blob {digest[:12]} is damaged: it has {n_bytes} bytes, and at most {max_bytes} are read",
            hint="tune again to replace it",
        )
