"""The only reader of environment variables and of `bcd-registry.toml`. A flag goes before a variable, that before the file."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import platformdirs
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from .config_file import (
    FILE_NAME,
    ConfigFile,
    DefaultsTable,
    NetworkTable,
    Positive,
    Seconds,
    Shapes,
    TeamKeys,
    describe_problem,
    form_of,
    nearest,
    parse_config,
)
from .errors import ConfigError, ReadOnly
from .folders import store_errors
from .model import NetworkSpec
from .model_uri import is_model_uri, parse_model_uri
from .staleness import DEFAULT_POLICY, StalenessPolicy
from .urls import masked, sqlite_path

if TYPE_CHECKING:
    from .registry import Registry

APPLICATION = "bcd-registry"
CATALOG_FILE = "catalog.db"
BLOB_FOLDER = "blobs"
CACHE_FOLDER = "blob-cache"
CONNECT_TIMEOUT_S = 5.0
LOCAL_CACHE_MIB = 1024
WRITABLE_HINT = "leave out --read-only, and unset BCD_READ_ONLY"

_PACKAGE = "package:"
_SUFFIXES = (".onnx", ".pt2")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a command may be told from outside, except its own options.

    Attributes:
        home: Folder of MLflow's database, of local copies, and of a catalog and blobs that have no URL; absolute.
        config: The `bcd-registry.toml` that was read, if any.
        mlflow_tracking_uri: Where runs are logged.
        registry_enabled: False keeps nothing beyond the process.
        workers: Builds at the same time; None leaves it to the tuner.
        database_url: The catalog; None is the home's file. May hold a password: messages take `catalog_name`.
        blobs_url: The blobs; None is the home's folder.
        s3_endpoint_url: The server of an S3 URL; None is Amazon's.
        s3_path_style: Whether requests name the bucket in the path.
        connect_timeout_s: How long a server may take to let us in.
        read_only: Refuse every write before a request is sent.
        require_registry: Whether a registry that cannot be reached ends a run.
        local_cache_mib: How much of the blobs of an S3 URL is kept in the home; 0 keeps none.
        defaults: Budgets and target for networks that say nothing else.
        networks: What the file defines, by label.
        staleness: What lookups say of records that are old or of another release.
        step_summary: Where a job of GitHub Actions collects what its page shows; None elsewhere.
    """

    home: Path
    config: Path | None
    mlflow_tracking_uri: str = field(repr=False)
    registry_enabled: bool
    workers: int | None
    database_url: str | None = field(repr=False)
    blobs_url: str | None
    s3_endpoint_url: str | None
    s3_region: str | None
    s3_path_style: bool
    connect_timeout_s: float
    read_only: bool
    require_registry: bool
    local_cache_mib: int
    defaults: DefaultsTable
    networks: Mapping[str, NetworkSpec]
    staleness: StalenessPolicy = DEFAULT_POLICY
    step_summary: Path | None = None

    @property
    def catalog_url(self) -> str:
        """The catalog, in the home or not. May hold a password: messages take `catalog_name`."""
        return self.database_url or f"sqlite:///{self.home / CATALOG_FILE}"

    @property
    def catalog_name(self) -> str:
        """The catalog, for people: never with a password."""
        return masked(self.catalog_url).removeprefix("sqlite:///")

    @property
    def blobs_name(self) -> str:
        """The blobs, for people."""
        at = f" at {self.s3_endpoint_url}" if self.s3_endpoint_url and self.blobs_url else ""
        return f"{self.blobs_url or self.home / BLOB_FOLDER}{at}"


class _Variables(TeamKeys, BaseSettings):
    """The environment variables, each `BCD_` and the name in capitals, and one of GitHub's. An empty one counts as not set."""

    model_config = SettingsConfigDict(env_prefix="BCD_", env_ignore_empty=True, extra="ignore", hide_input_in_errors=True)

    home: Path | None = None
    config: Path | None = None
    registry: bool | None = None
    mlflow_tracking_uri: str | None = None
    workers: int | None = Field(default=None, gt=0)
    step_summary: Path | None = Field(default=None, validation_alias="GITHUB_STEP_SUMMARY")


def load_settings(
    home: Path | None = None, config: Path | None = None, *, read_only: bool | None = None, require_registry: bool | None = None
) -> Settings:
    """Settings from the arguments, the environment and the file, in this order.

    Args:
        home: What a flag says, if any; likewise `read_only` and `require_registry`.
        config: The file to read; otherwise `BCD_CONFIG`, or the nearest `bcd-registry.toml` from the current folder upwards.

    Raises:
        ConfigError: A variable or the file is wrong; the message names it.
    """
    variables = _read_variables()
    path = _config_path(config or variables.config)
    file = ConfigFile() if path is None else parse_config(_read_config(path), path)
    folder = Path.cwd() if path is None else path.parent
    chosen = _home(home or variables.home, file.home, folder)
    endpoint_url = variables.s3_endpoint_url or file.s3_endpoint_url
    settings = Settings(
        home=chosen,
        config=path,
        mlflow_tracking_uri=variables.mlflow_tracking_uri or file.mlflow_tracking_uri or f"sqlite:///{chosen / 'mlflow.db'}",
        registry_enabled=_first(variables.registry, file.registry, True),
        workers=variables.workers or file.workers,
        database_url=_anchored(variables.database_url, Path.cwd()) or _anchored(file.database_url, folder),
        blobs_url=variables.blobs_url or file.blobs_url,
        s3_endpoint_url=endpoint_url,
        s3_region=variables.s3_region or file.s3_region,
        s3_path_style=_first(variables.s3_path_style, file.s3_path_style, endpoint_url is not None),
        connect_timeout_s=variables.connect_timeout_s or file.connect_timeout_s or CONNECT_TIMEOUT_S,
        read_only=_first(read_only, variables.read_only, file.read_only, False),
        require_registry=_first(require_registry, variables.require_registry, file.require_registry, False),
        local_cache_mib=_first(variables.local_cache_mib, file.local_cache_mib, LOCAL_CACHE_MIB),
        defaults=file.defaults,
        networks={label: _spec(label, table, file.defaults, folder) for label, table in file.networks.items()},
        staleness=StalenessPolicy(file.staleness.max_age, file.staleness.on_version),
        step_summary=variables.step_summary,
    )
    _require_sense(settings)
    return settings


def resolve_network(
    settings: Settings,
    model: str,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
    target: str | None = None,
    trials: int | None = None,
    time_budget_s: float | None = None,
) -> NetworkSpec:
    """The network that `--model` means: a label of the file, an .onnx or .pt2 file, `package:...` or a model of MLflow.

    The other arguments are what flags say; shapes and dtypes replace those of the same input only.

    Raises:
        ConfigError: It is none of these, or a value is out of range.
    """
    spec = settings.networks.get(model) or _spec_of_source(settings, model)
    return NetworkSpec(
        label=spec.label,
        name=spec.name,
        version=spec.version,
        source=spec.source,
        shapes={**spec.shapes, **_checked_shapes(shapes or {})},
        dtypes={**spec.dtypes, **(dtypes or {})},
        target=spec.target if target is None else target,
        trials=_checked("trials", Positive, spec.trials if trials is None else trials),
        time_budget_s=spec.time_budget_s if time_budget_s is None else _checked("time budget", Seconds, time_budget_s),
    )


def open_registry(settings: Settings) -> Registry:
    """The registry that the URLs name, or that in the home folder; close it, or use it in a `with` block.

    What is not there is made, except a bucket and a database of PostgreSQL themselves; nothing is made when it is read-only.
    With `registry_enabled` False it is in memory and ends with the process.

    Raises:
        StoreDenied: The home, or the database, is not this user's to use.
        StoreUnavailable: The home is full or not a folder; the catalog or the bucket does not answer, is locked or damaged.
        SchemaMismatch: The catalog has another release's revision.
    """
    from .catalog.read_only import ReadOnlyCatalog
    from .registry import Registry
    from .stores import open_blobs, open_catalog

    with contextlib.ExitStack() as opened:
        catalog = opened.enter_context(open_catalog(settings))
        blobs = opened.enter_context(open_blobs(settings, ask=True))
        on_close = opened.pop_all().close
    usable = ReadOnlyCatalog(catalog) if settings.read_only else catalog
    return Registry(usable, blobs, on_close=on_close, policy=settings.staleness)


def upgrade_catalog(settings: Settings) -> tuple[str | None, str]:
    """Bring the catalog to this release's revision; returns the revisions before (None: new) and after.

    Raises:
        SchemaMismatch: It is newer, or of no known revision.
        StoreDenied: See `open_registry`; `ReadOnly` when the settings say so.
        StoreUnavailable: See `open_registry`.
    """
    from .catalog.engines import engine_of
    from .catalog.schema import upgrade_database

    if settings.read_only:
        raise ReadOnly("the registry is read-only, so its catalog is not upgraded", hint=WRITABLE_HINT)
    if settings.database_url is None:
        make_home(settings)
    engine = engine_of(settings.catalog_url, settings.connect_timeout_s)
    try:
        return upgrade_database(engine)
    finally:
        engine.dispose()


def make_home(settings: Settings) -> Path:
    """The home folder, made when it is not there.

    Raises:
        StoreDenied: It is not this user's to make.
        StoreUnavailable: Something else is in its place, or the disk is full.
    """
    with store_errors(settings.home):
        settings.home.mkdir(parents=True, exist_ok=True)
    return settings.home


def _read_variables() -> _Variables:
    try:
        return _Variables()
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        name = f"BCD_{key}".upper()
        hint = "; ".join(filter(None, (f"correct or unset {name}", form_of(key))))
        raise ConfigError(f"{name} {describe_problem(first)}", hint=hint) from error


def _config_path(given: Path | None) -> Path | None:
    if given is not None:
        return given.expanduser().absolute()
    here = Path.cwd()
    return next((path for folder in (here, *here.parents) if (path := folder / FILE_NAME).is_file()), None)


def _read_config(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text", hint="save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="check --config or BCD_CONFIG") from error


def _home(given: Path | None, in_file: str | None, folder: Path) -> Path:
    if given is not None:
        return _expanded(given).absolute()
    if in_file is not None:
        return (folder / _expanded(in_file)).absolute()
    return Path(platformdirs.user_data_dir(APPLICATION))


def _expanded(path: Path | str) -> Path:
    """The path with the home that `~` or `~NAME` stands for."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{str(path)!r:.80} names the home of nobody", hint="write the whole path") from error


def _first(*values: _Value | None) -> _Value:
    return next(value for value in values if value is not None)


def _require_sense(settings: Settings) -> None:
    if settings.require_registry and not settings.registry_enabled:
        raise ConfigError(
            "the registry is required, and switched off", hint="unset BCD_REGISTRY, or leave out --require-registry"
        )
    if "?" in str(settings.home):
        raise ConfigError(f"the home {settings.home} has a ? in its path", hint="choose another with --home or BCD_HOME")


def _anchored(database_url: str | None, folder: Path) -> str | None:
    """The URL with the path of a SQLite file made absolute."""
    if database_url is None or not database_url.startswith("sqlite:"):
        return database_url
    return f"sqlite:///{folder / _expanded(sqlite_path(database_url))}"


def _spec(label: str, table: NetworkTable, defaults: DefaultsTable, folder: Path) -> NetworkSpec:
    elsewhere = table.source.startswith(_PACKAGE) or is_model_uri(table.source)
    return NetworkSpec(
        label=label,
        name=table.name or label,
        version=table.version or (parse_model_uri(table.source).network[1] if is_model_uri(table.source) else ""),
        source=table.source if elsewhere else str(folder / _expanded(table.source)),
        shapes=table.shapes,
        dtypes=table.dtypes,
        target=table.target or defaults.target,
        trials=table.trials or defaults.trials,
        time_budget_s=defaults.time_budget_s if table.time_budget_s is None else table.time_budget_s,
    )


def _spec_of_source(settings: Settings, model: str) -> NetworkSpec:
    """The spec of a network that is not in the file."""
    try:
        model.encode()
    except UnicodeEncodeError as error:
        raise ConfigError("the path is not UTF-8", hint="rename the file") from error
    name, version = _name_of_source(settings, model)
    defaults = settings.defaults
    return NetworkSpec(
        label=model,
        name=name,
        version=version,
        source=model,
        target=defaults.target,
        trials=defaults.trials,
        time_budget_s=defaults.time_budget_s,
    )


def _name_of_source(settings: Settings, model: str) -> tuple[str, str]:
    """Name and version by default."""
    if is_model_uri(model):
        return parse_model_uri(model).network
    if not (_is_package_source(model) or model.endswith(_SUFFIXES)):
        raise _unknown_network(settings, model)
    return PurePosixPath(model.removeprefix(_PACKAGE)).stem, ""


def _is_package_source(model: str) -> bool:
    package, _, resource = model.removeprefix(_PACKAGE).partition("/")
    return model.startswith(_PACKAGE) and bool(package and resource)


def _unknown_network(settings: Settings, model: str) -> ConfigError:
    if Path(model).is_file():
        return ConfigError(f"{model} is not an .onnx or .pt2 file", hint="export the model to ONNX or with torch.export first")
    if settings.networks:
        where = settings.config or FILE_NAME
        return ConfigError(f"no network {model!r} in {where}", hint=nearest(model, settings.networks))
    return ConfigError(
        f"no network {model!r}: there is no {FILE_NAME} with networks here",
        hint=f'give a path to an .onnx or .pt2 file, or write `[networks.{model}]` and `source = "model.onnx"` to {FILE_NAME}',
    )


def _checked_shapes(shapes: Mapping[str, Sequence[int]]) -> Shapes:
    return {name: _checked(f"shape of {name}", tuple[Positive, ...], tuple(shape)) for name, shape in shapes.items()}


def _checked(name: str, kind: Any, value: object) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{name} {describe_problem(first)}", hint="all of these are positive numbers") from error
