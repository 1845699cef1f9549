"""The only reader of environment variables and of `bcd-registry.toml`. A flag goes before a variable, that before the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

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
    describe_problem,
    nearest,
    parse_config,
)
from .errors import ConfigError
from .folders import store_errors
from .model import NetworkSpec

if TYPE_CHECKING:
    from .registry import Registry

APPLICATION = "bcd-registry"
CATALOG_FILE = "catalog.db"
BLOB_FOLDER = "blobs"

_PACKAGE = "package:"
_SUFFIXES = (".onnx", ".pt2")


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a command may be told from outside, except its own options.

    Attributes:
        home: Folder of the catalog, the blobs and MLflow's database; absolute.
        config: The `bcd-registry.toml` that was read, if any.
        mlflow_tracking_uri: Where runs are logged.
        registry_enabled: False keeps nothing beyond the process.
        workers: Builds at the same time; None leaves it to the tuner.
        defaults: Budgets and target for networks that say nothing else.
        networks: What the file defines, by label.
    """

    home: Path
    config: Path | None
    mlflow_tracking_uri: str
    registry_enabled: bool
    workers: int | None
    defaults: DefaultsTable
    networks: Mapping[str, NetworkSpec]


class _Variables(BaseSettings):
    """The environment variables, each `BCD_` and the name in capitals. An empty one counts as not set."""

    model_config = SettingsConfigDict(env_prefix="BCD_", env_ignore_empty=True, extra="ignore")

    home: Path | None = None
    config: Path | None = None
    registry: bool | None = None
    mlflow_tracking_uri: str | None = None
    workers: int | None = Field(default=None, gt=0)


def load_settings(home: Path | None = None, config: Path | None = None) -> Settings:
    """Settings from the arguments, the environment and the file, in this order.

    Args:
        home: What a flag says, if any.
        config: The file to read; otherwise `BCD_CONFIG`, or the nearest `bcd-registry.toml` from the current folder upwards.

    Raises:
        ConfigError: A variable or the file is wrong; the message names it.
    """
    variables = _read_variables()
    path = _config_path(config or variables.config)
    file = ConfigFile() if path is None else parse_config(_read_config(path), path)
    folder = Path.cwd() if path is None else path.parent
    chosen = _home(home or variables.home, file.home, folder)
    return Settings(
        home=chosen,
        config=path,
        mlflow_tracking_uri=variables.mlflow_tracking_uri or file.mlflow_tracking_uri or f"sqlite:///{chosen / 'mlflow.db'}",
        registry_enabled=_first(variables.registry, file.registry, True),
        workers=variables.workers or file.workers,
        defaults=file.defaults,
        networks={label: _spec(label, table, file.defaults, folder) for label, table in file.networks.items()},
    )


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
    """The network that `--model` means: a label of the file, a path to an .onnx or .pt2 file, or `package:...`.

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
    """The registry in the home folder, made when it is not there; close it, or use it in a `with` block.

    With `registry_enabled` False it is in memory and ends with the process.

    Raises:
        StoreDenied: The home is not this user's to write.
        StoreUnavailable: The home is full, not a folder, or its catalog is locked or damaged.
        SchemaMismatch: The catalog has another release's revision.
    """
    from .blobs.local import LocalBlobs
    from .blobs.memory import MemoryBlobs
    from .catalog.sql import SqlCatalog
    from .registry import Registry

    if not settings.registry_enabled:
        catalog = SqlCatalog.open_memory()
        return Registry(catalog, MemoryBlobs(), on_close=catalog.close)
    make_home(settings)
    catalog = SqlCatalog.open_file(settings.home / CATALOG_FILE)
    return Registry(catalog, LocalBlobs(settings.home / BLOB_FOLDER), on_close=catalog.close)


def upgrade_catalog(settings: Settings) -> tuple[str | None, str]:
    """Bring the home's catalog to this release's revision; returns the revisions before (None: new) and after.

    Raises:
        SchemaMismatch: It is newer, or of no known revision.
        StoreDenied: See `open_registry`.
        StoreUnavailable: See `open_registry`.
    """
    from .catalog.engines import file_engine
    from .catalog.schema import upgrade_database

    make_home(settings)
    engine = file_engine(settings.home / CATALOG_FILE)
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
        name = f"BCD_{first['loc'][0]}".upper()
        raise ConfigError(f"{name} {describe_problem(first)}", hint=f"correct or unset {name}") from error


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
        return given.expanduser().absolute()
    if in_file is not None:
        return (folder / Path(in_file).expanduser()).absolute()
    return Path(platformdirs.user_data_dir(APPLICATION))


def _first(*values: bool | None) -> bool:
    return next(value for value in values if value is not None)


def _spec(label: str, table: NetworkTable, defaults: DefaultsTable, folder: Path) -> NetworkSpec:
    return NetworkSpec(
        label=label,
        name=table.name or label,
        version=table.version,
        source=table.source if table.source.startswith(_PACKAGE) else str(folder / Path(table.source).expanduser()),
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
    if not (_is_package_source(model) or model.endswith(_SUFFIXES)):
        raise _unknown_network(settings, model)
    defaults = settings.defaults
    return NetworkSpec(
        label=model,
        name=PurePosixPath(model.removeprefix(_PACKAGE)).stem,
        version="",
        source=model,
        target=defaults.target,
        trials=defaults.trials,
        time_budget_s=defaults.time_budget_s,
    )


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
