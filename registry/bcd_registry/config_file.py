"""What a `bcd-registry.toml` may hold, and where it is wrong. Pure: the text comes from `settings`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from .errors import ConfigError
from .staleness import OnVersion
from .urls import checked_blobs_url, checked_database_url, checked_endpoint_url, masked

FILE_NAME = "bcd-registry.toml"
"""Looked for in the current folder and those above it."""

MAX_CHARACTERS = 1 << 18
"""Longest file: a network takes some 200."""

_SHOWN_LENGTH = 200

_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_AGE = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in _UNIT_S))


def parse_age(value: object) -> float:
    """Seconds from `90d`, `12h`, `90m` or `1d12h`.

    Raises:
        ValueError: It is none of these.
    """
    match = _AGE.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = sum(float(number) * _UNIT_S[unit] for unit, number in match.groupdict().items() if number) if match else 0.0
    if seconds <= 0:
        raise ValueError("is not a time")
    return seconds


_KEY = re.compile(r"[\w\"'.\-\s]+")

Positive = Annotated[int, Field(strict=True, gt=0, lt=2**31)]
Mebibytes = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ShortTime = Annotated[float, Field(gt=0, le=600)]
Age = Annotated[float, BeforeValidator(parse_age), Field(allow_inf_nan=False)]
Words = Annotated[str, StringConstraints(strict=True, min_length=1)]
Shapes = dict[str, tuple[Positive, ...]]
DatabaseUrl = Annotated[str, AfterValidator(checked_database_url)]
BlobsUrl = Annotated[str, AfterValidator(checked_blobs_url)]
EndpointUrl = Annotated[str, AfterValidator(checked_endpoint_url)]
Region = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$")]

_FORMS = {
    "database_url": "it is postgresql+psycopg://USER@HOST/DATABASE, or sqlite:///FILE",
    "blobs_url": "it is s3://BUCKET/PREFIX, or file:///FOLDER",
    "s3_endpoint_url": "it is the server's address, for example http://127.0.0.1:8333",
    "s3_region": "it is a region's name, for example eu-central-1",
    "max_age": 'it is a time such as "90d", "12h" or "1d12h"',
}
_MASKED = ("database_url", "blobs_url", "s3_endpoint_url", "mlflow_tracking_uri")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class DefaultsTable(_Table):
    """`[defaults]`: for every network that says nothing else."""

    trials: Positive = 32
    time_budget_s: Seconds | None = None
    target: Words = "native"


class NetworkTable(_Table):
    """`[networks.LABEL]`: one version of a network."""

    source: Words
    name: Words | None = None
    version: str = ""
    shapes: Shapes = Field(default_factory=dict)
    dtypes: dict[str, Words] = Field(default_factory=dict)
    trials: Positive | None = None
    time_budget_s: Seconds | None = None
    target: Words | None = None


class StalenessTable(_Table):
    """`[staleness]`: when a record is a prior only, or of no use.

    Attributes:
        max_age: Seconds; written as `90d`.
    """

    max_age: Age | None = None
    on_version: OnVersion = OnVersion.PRIOR


class TeamKeys(BaseModel):
    """The keys of a team's registry, the same in the file and, as `BCD_` variables, in the environment."""

    database_url: DatabaseUrl | None = None
    blobs_url: BlobsUrl | None = None
    s3_endpoint_url: EndpointUrl | None = None
    s3_region: Region | None = None
    s3_path_style: bool | None = None
    connect_timeout_s: ShortTime | None = None
    read_only: bool | None = None
    require_registry: bool | None = None
    local_cache_mib: Mebibytes | None = None


class ConfigFile(TeamKeys, _Table):
    """The whole file."""

    home: Words | None = None
    registry: bool | None = None
    mlflow_tracking_uri: Words | None = None
    workers: Positive | None = None
    defaults: DefaultsTable = DefaultsTable()
    staleness: StalenessTable = StalenessTable()
    networks: dict[str, NetworkTable] = Field(default_factory=dict)


_TABLES: Mapping[str, type[_Table]] = {"defaults": DefaultsTable, "staleness": StalenessTable}


def parse_config(text: str, path: Path) -> ConfigFile:
    """The file's content.

    Raises:
        ConfigError: It is not TOML, is too long, or has a key or a value that it may not have.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"{path}: it has more than {MAX_CHARACTERS} characters", hint="it lists settings and networks, nothing else"
        )
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _broken(text, path, error) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists in lists in lists
        raise ConfigError(
            f"{path}: a value in it is too long or nested too deeply", hint="correct it; the file is TOML"
        ) from error
    try:
        return ConfigFile.model_validate(content)
    except ValidationError as error:
        raise _invalid(text, path, error.errors()[0]) from error


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names what was probably meant, or else all that is known; empty when nothing is."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known: {', '.join(names)}" if names else ""


def describe_problem(error: ErrorDetails) -> str:
    """What is wrong with a value, with the value, but never with a password in it."""
    if error["type"] == "missing":
        return "is missing"
    message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    value = error["input"]
    if isinstance(value, str) and error["loc"] and error["loc"][-1] in _MASKED:
        value = masked(value)
    return f"= {_shown(value)} {message[:1].lower()}{message[1:]}"


def _shown(value: object) -> str:
    """A value on one line that is not too long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # as in `parse_config`
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"


def form_of(name: str) -> str:
    """A hint that shows what the value of a key looks like; empty where that needs no words."""
    return _FORMS.get(name, "")


def _broken(text: str, path: Path, error: tomllib.TOMLDecodeError) -> ConfigError:
    message = str(error)
    place = re.search(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$", message)
    if place is None:
        return ConfigError(f"{path}: {message}")
    line = int(place[1]) if place[1] else len(text.splitlines())
    return ConfigError(f"{path}:{line}: {message[: place.start()]}", hint="correct the line; the file is TOML")


def _invalid(text: str, path: Path, error: ErrorDetails) -> ConfigError:
    place = error["loc"]
    where = f"{path}:{_line_of(text, place)}"
    if error["type"] == "extra_forbidden":
        known = _tables_at(place[:-1]).model_fields
        return ConfigError(f"{where}: unknown key {_dotted(place)!r}", hint=nearest(str(place[-1]), known))
    return ConfigError(f"{where}: {_dotted(place)} {describe_problem(error)}", hint=_hint_for(place))


def _tables_at(place: tuple[int | str, ...]) -> type[_Table]:
    """The table that the keys lead to."""
    if not place:
        return ConfigFile
    return _TABLES.get(str(place[0]), NetworkTable)


def _hint_for(place: tuple[int | str, ...]) -> str:
    if "shapes" in place:
        return "a shape is a list of positive integers, for example `shapes = { input = [1, 3, 48, 320] }`"
    if place[-1] == "source":
        return "`source` is a path to an .onnx or .pt2 file, or `package:IMPORT_NAME/path/in/package.onnx`"
    return form_of(str(place[-1])) if place else ""


def _dotted(place: Iterable[int | str]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part if part.isprintable() else ascii(part)}"
    return text.removeprefix(".")[:_SHOWN_LENGTH]


def _line_of(text: str, place: tuple[int | str, ...]) -> int:
    """The line of the deepest key of the place that begins a line; 1 when none does."""
    names = [part for part in place if isinstance(part, str)]
    lines = _key_lines(text)
    for depth in range(len(names), 0, -1):
        if tuple(names[:depth]) in lines:
            return lines[tuple(names[:depth])]
    return 1


def _key_lines(text: str) -> Mapping[tuple[str, ...], int]:
    """Where tables and plain keys begin. Good enough to point at a line; keys within inline tables are not seen."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header, bracket, _ = line.lstrip().partition("]")
        key, equals, _ = line.partition("=")
        if bracket and header.startswith("["):
            table = _key_parts(header.lstrip("["))
            lines.setdefault(table, number)
        elif equals and _KEY.fullmatch(key):
            lines.setdefault((*table, *_key_parts(key)), number)
    return lines


def _key_parts(key: str) -> tuple[str, ...]:
    quoted_or_bare: list[Any] = re.findall(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)", key)
    return tuple("".join(parts) for parts in quoted_or_bare)
