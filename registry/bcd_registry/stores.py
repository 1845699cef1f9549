"""The two stores that settings name: opened, and looked at without being made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ConfigError, StoreUnavailable
from .settings import BLOB_FOLDER, CACHE_FOLDER, Settings, make_home
from .urls import BucketUrl, parse_blobs_url, sqlite_path

if TYPE_CHECKING:
    from .blobs.s3 import S3Blobs
    from .catalog.sql import SqlCatalog
    from .ports import BlobStore

_CACHE_LEDGER = "size"
"""The file beside the copies that tells how much they are."""


def open_catalog(settings: Settings) -> SqlCatalog:
    """The catalog, to be closed; `settings.read_only` makes nothing, but does not refuse writes yet.

    A SQLite file that is not there reads as an empty catalog, unless the registry is required.

    Raises:
        StoreDenied: It is not this user's to use.
        StoreUnavailable: It does not answer, is locked or damaged, or is required and not there.
        SchemaMismatch: It has another release's revision.
    """
    from .catalog.sql import SqlCatalog

    if not settings.registry_enabled:
        return SqlCatalog.open_memory()
    if settings.read_only and _is_missing_file(settings):
        if settings.require_registry:
            raise StoreUnavailable(f"there is no catalog {settings.catalog_name}", hint="check BCD_DATABASE_URL or BCD_HOME")
        return SqlCatalog.open_memory()
    if settings.database_url is None and not settings.read_only:
        make_home(settings)
    return SqlCatalog.open_url(
        settings.catalog_url, connect_timeout_s=settings.connect_timeout_s, create=not settings.read_only
    )


@contextlib.contextmanager
def open_blobs(settings: Settings, *, ask: bool = False) -> Iterator[BlobStore]:
    """The blobs, closed at the end of the block.

    Args:
        ask: Ask a server whether it is there and has the bucket; otherwise that shows at the first call.

    Raises:
        ConfigError: The library for S3 is not installed.
        RegistryError: See `S3Blobs.require_bucket`.
    """
    from .blobs.wrappers import ReadOnlyBlobs

    with contextlib.ExitStack() as opened:
        blobs = _open_blobs(settings, opened, ask)
        yield ReadOnlyBlobs(blobs) if settings.read_only else blobs


def read_revision(settings: Settings) -> str | None:
    """The revision of the catalog, None when it has none yet; never makes one.

    Raises:
        SchemaMismatch: It has tables of a registry, but no revision.
        StoreDenied: It is not this user's to use.
        StoreUnavailable: It does not answer, is locked or damaged.
    """
    from .catalog import probes

    return None if _is_missing_file(settings) else probes.read_revision(settings.catalog_url, settings.connect_timeout_s)


def try_catalog(settings: Settings, *, write: bool) -> None:
    """Read every table of the catalog, or write to every one and take it back.

    Raises:
        StoreDenied: This user may not.
        StoreUnavailable: It does not answer, is full, locked or damaged.
        SchemaMismatch: A table is not there.
    """
    from .catalog import probes

    probe = probes.try_writing if write else probes.try_reading
    probe(settings.catalog_url, settings.connect_timeout_s)


def _is_missing_file(settings: Settings) -> bool:
    return settings.catalog_url.startswith("sqlite:") and not sqlite_path(settings.catalog_url).exists()


def _open_blobs(settings: Settings, opened: contextlib.ExitStack, ask: bool) -> BlobStore:
    from .blobs.ledger import SizeLedger
    from .blobs.local import LocalBlobs
    from .blobs.memory import MemoryBlobs
    from .blobs.wrappers import TieredBlobs

    if not settings.registry_enabled:
        return MemoryBlobs()
    place = settings.home / BLOB_FOLDER if settings.blobs_url is None else parse_blobs_url(settings.blobs_url)
    if isinstance(place, Path):
        return LocalBlobs(place)
    remote = _bucket(settings, place)
    opened.callback(remote.close)
    if ask:
        remote.require_bucket()
    if not settings.local_cache_mib:
        return remote
    copies = settings.home / CACHE_FOLDER
    ledger = SizeLedger(copies / _CACHE_LEDGER)
    return TieredBlobs(LocalBlobs(copies), remote, capacity_bytes=settings.local_cache_mib << 20, ledger=ledger)


def _bucket(settings: Settings, place: BucketUrl) -> S3Blobs:
    try:
        from .blobs.s3 import S3Blobs
    except ImportError as error:
        raise ConfigError("the library for S3 is not installed", hint="pip install boto3") from error
    return S3Blobs(
        place.bucket,
        place.prefix,
        endpoint_url=settings.s3_endpoint_url,
        region=settings.s3_region,
        path_style=settings.s3_path_style,
        connect_timeout_s=settings.connect_timeout_s,
    )
