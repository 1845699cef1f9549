"""The URLs of a registry: what they may be, and how they are shown. Pure; a wrong one is a `ValueError` without the value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

_POSTGRES = "postgresql+psycopg"
_POSTGRES_ALIASES = ("postgres", "postgresql", _POSTGRES)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_PREFIX_PART = re.compile(r"[A-Za-z0-9!_.*'()=-]+")
_SECRET_PARAMETER = re.compile(
    r"([?&;][^=&;#]*(?:pass|pwd|secret|token|key|credential|signature)[^=&;#]*=)[^&;#]*", re.IGNORECASE
)
_NO_PORT = re.compile(r"(?P<host>[^/?#:\[]*):(?!\d{1,5}(?:[/?#]|$))[^/?#]*")
_MASK = "***"


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """`s3://BUCKET/PREFIX`.

    Attributes:
        prefix: Without slashes around it; may be empty.
    """

    bucket: str
    prefix: str


def checked_database_url(text: str) -> str:
    """The URL, with the driver that we use.

    Raises:
        ValueError: It is none of PostgreSQL or of a SQLite file.
    """
    scheme = _scheme(text)
    if scheme == "sqlite":
        return _checked_sqlite(text)
    if scheme.startswith("postgresql+") and scheme != _POSTGRES:
        raise ValueError(f"has another driver than {_POSTGRES}")
    if scheme not in _POSTGRES_ALIASES:
        raise ValueError(f"has the unknown scheme {scheme!r}; known: {_POSTGRES}, sqlite")
    parts = _split(text)
    if not (parts.hostname or re.search(r"(?:^|&)host=.", parts.query)):
        raise ValueError("names no host")
    if not re.fullmatch(r"/[^/]+", parts.path):
        raise ValueError("names no database")
    return f"{_POSTGRES}{text[len(scheme) :]}"


def sqlite_path(url: str) -> Path:
    """The file of a checked `sqlite:///FILE`; three slashes are a relative path, four an absolute one."""
    return Path(url.removeprefix("sqlite:///"))


def parse_blobs_url(text: str) -> BucketUrl | Path:
    """A bucket, or a folder of the `file:///PATH`.

    Raises:
        ValueError: It is neither.
    """
    scheme = _scheme(text)
    if scheme == "s3":
        return _bucket(text)
    if scheme == "file":
        return _folder(text)
    raise ValueError(f"has the unknown scheme {scheme!r}; known: s3, file")


def checked_blobs_url(text: str) -> str:
    """The URL itself.

    Raises:
        ValueError: See `parse_blobs_url`.
    """
    parse_blobs_url(text)
    return text


def checked_endpoint_url(text: str) -> str:
    """The URL of an S3 server, without a slash at the end.

    Raises:
        ValueError: It is not one of http or https with a host, or has more than host, port and path.
    """
    scheme = _scheme(text)
    if scheme not in ("http", "https"):
        raise ValueError(f"has the unknown scheme {scheme!r}; known: http, https")
    parts = _split(text)
    if "@" in parts.netloc:
        raise ValueError("has credentials; they belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if not parts.hostname:
        raise ValueError("names no host")
    if parts.query or text.endswith("?"):
        raise ValueError("has more than a host, a port and a path")
    return text.rstrip("/")


def masked(text: str) -> str:
    """The URL without its password, for messages; of a malformed one rather too little is shown than too much."""
    text = _SECRET_PARAMETER.sub(_masked_value, text)
    match = _SCHEME.match(text)
    scheme = match[0] if match else ""
    user_info, at, place = text[len(scheme) :].rpartition("@")
    if at:
        user, colon, _ = user_info.partition(":")
        user_info = _MASK if not scheme else f"{user}:{_MASK}" if colon else user
    elif port := _NO_PORT.match(place):
        place = f"{port['host']}:{_MASK}{place[port.end() :]}"
    return f"{scheme}{user_info}{at}{place}"


def _masked_value(parameter: re.Match[str]) -> str:
    return f"{parameter[1]}{_MASK}"


def _scheme(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has a character that cannot be printed")
    match = _SCHEME.match(text)
    if match is None:
        raise ValueError("has no scheme")
    return match[1].lower()


def _split(text: str) -> SplitResult:
    """The parts of an URL with a host. What the standard library says of a wrong one may hold its password."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("has no valid host and port; in its password, / ? # [ ] @ are written as %2F %3F %23 %5B %5D %40")
    if parts.fragment or " " in text or text.count("@") > parts.netloc.count("@") or parts.netloc.count("@") > 1:
        raise ValueError("has a space, a # or an @ too many; in its password they are written as %20 %23 %40")
    return parts


def _checked_sqlite(text: str) -> str:
    match = re.fullmatch(r"sqlite:///([^?]+)", text, re.IGNORECASE)
    if match is None or match[1] in ("/", ":memory:"):
        raise ValueError("names no file; sqlite:///FILE does, and sqlite:////FILE when the path is absolute")
    return f"sqlite:///{match[1]}"


def _bucket(text: str) -> BucketUrl:
    bucket, _, prefix = text[len("s3://") :].partition("/")
    if "@" in bucket:
        raise ValueError("has credentials; they belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError("names no bucket" if not bucket else "has a bucket's name that is none")
    prefix = prefix.removesuffix("/")
    for part in prefix.split("/") if prefix else ():
        if unquote(part) in ("", ".", ".."):
            raise ValueError("has a prefix with .. or . or nothing between two slashes")
        if not _PREFIX_PART.fullmatch(part):
            raise ValueError("has a prefix with more than letters, digits and - _ . ! * ' ( ) =")
    return BucketUrl(bucket, prefix)


def _folder(text: str) -> Path:
    host, slash, rest = text[len("file://") :].partition("/")
    path = unquote(rest)
    if host not in ("", "localhost") or not slash:
        raise ValueError("names no folder; file:///PATH does")
    if "?" in rest or "#" in rest:
        raise ValueError("has a ? or a #; in a path they are written as %3F %23")
    if ".." in path.split("/") or not path.isprintable() or not path.strip("/"):
        raise ValueError("has a path that is empty, or with .. in it")
    return Path("/", path)
