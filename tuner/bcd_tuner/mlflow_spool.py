"""What MLflow has not taken yet: each run whole, in a folder of its own, as JSON and PNG."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from bcd_registry.errors import CorruptBlob
from bcd_registry.folders import make_folder, store_errors, write_whole

from .run_log import RunLog

SPOOL_FOLDER = "mlflow-spool"
"""Below the home."""

SYNC_COMMAND = "bcd-registry mlflow sync"

_RUN = "run.v1.json"
_LOCK = ".lock"
_UNFINISHED = ".unfinished"
_ASIDE = ".set-aside"
_PICTURE = re.compile(r"[\w-]+\.png")


@dataclass(frozen=True, slots=True)
class Entry:
    """One run that waits.

    Attributes:
        pictures: Files that belong to it.
    """

    folder: Path
    log: RunLog
    pictures: tuple[Path, ...]


def write_entry(root: Path, log: RunLog, pictures: Mapping[str, bytes]) -> Path:
    """Keep a run; its folder, which is on the disk when this returns.

    Args:
        root: The spool, `home/mlflow-spool`; it is made.
        pictures: PNGs by file name, for example `curve.png`.

    Raises:
        StoreUnavailable: The disk is full or fails.
        StoreDenied: The folder is not this user's to write.
    """
    folder = root / log.run_id
    with store_errors(root):
        make_folder(folder)
        for name, data in pictures.items():
            write_whole(folder / name, data, temporary=folder, prefix=".", suffix=_UNFINISHED)
        # the last one: a folder without it is none
        data = TypeAdapter(RunLog).dump_json(log)
        write_whole(folder / _RUN, data, temporary=folder, prefix=".", suffix=_UNFINISHED)
    return folder


def read_entry(folder: Path) -> Entry:
    """What waits in the folder.

    Raises:
        CorruptBlob: It is damaged, or of another release.
    """
    try:
        log = TypeAdapter(RunLog).validate_json((folder / _RUN).read_bytes())
        pictures = tuple(sorted(path for path in folder.iterdir() if _PICTURE.fullmatch(path.name)))
    except OSError as error:
        raise CorruptBlob(f"{folder} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise CorruptBlob(f"{folder / _RUN} holds no run: {error.errors()[0]['msg']}") from error
    return Entry(folder, log, pictures)


def list_entries(root: Path) -> list[Path]:
    """Folders of the runs that wait, by name; none where the spool is not there."""
    with store_errors(root):
        return sorted(path.parent for path in root.glob(f"*/{_RUN}")) if root.is_dir() else []


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[bool]:
    """Whether the entry is this process's alone for the block; False while another one logs it, or has logged it."""
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except (Timeout, OSError):
        yield False
        return
    try:
        yield (folder / _RUN).is_file()
    finally:
        lock.release()


def remove_entry(folder: Path) -> None:
    """Forget a run that MLflow has."""
    with store_errors(folder):
        (folder / _RUN).unlink(missing_ok=True)  # first, so that half a folder is no entry
        shutil.rmtree(folder, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Rename a run that is damaged or refused, so that it is not tried again; where it lies then."""
    aside = folder / f"{_RUN}{_ASIDE}"
    with store_errors(folder):
        (folder / _RUN).replace(aside)
    return aside
