"""How MLflow names a model: `models:/NAME/VERSION`, `models:/NAME@ALIAS`, `runs:/RUN_ID/PATH`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from .errors import ConfigError

FORMS = "models:/NAME/VERSION, models:/NAME/latest, models:/NAME@ALIAS or runs:/RUN_ID/PATH"

_SCHEMES = ("models:", "runs:")
_NAME = r"(?P<name>[^/:@]+)"
_MODEL = re.compile(rf"models:/{_NAME}(?:/(?P<version>\d+|latest)|@(?P<alias>[^/:@]+))")
_RUN = re.compile(r"runs:/(?P<run_id>[0-9a-f]{32})/(?P<path>[^/].*)")


@dataclass(frozen=True, slots=True)
class ModelUri:
    """One model in MLflow; either a registered one or one of a run.

    Attributes:
        version: A number or `latest`; empty with an alias.
        path: Where it lies below the run.
    """

    text: str
    name: str = ""
    version: str = ""
    alias: str = ""
    run_id: str = ""
    path: str = ""

    @property
    def network(self) -> tuple[str, str]:
        """Name and version that the network gets by default, as far as they can be told without MLflow."""
        if self.run_id:
            return PurePosixPath(self.path).stem, self.run_id[:8]
        return self.name, self.version if self.version.isdigit() else ""


def is_model_uri(text: str) -> bool:
    """Whether it means to name a model in MLflow."""
    return text.startswith(_SCHEMES)


def parse_model_uri(text: str) -> ModelUri:
    """Its parts.

    Raises:
        ConfigError: It has another form.
    """
    match = _MODEL.fullmatch(text) or _RUN.fullmatch(text)
    if match is None or not text.isprintable() or ".." in text.split("/"):
        raise ConfigError(f"{text!r} does not name a model in MLflow", hint=f"it is {FORMS}")
    return ModelUri(text, **{name: part for name, part in match.groupdict().items() if part is not None})


def checked_model_name(name: str) -> str:
    """The name, when MLflow takes it for a registered model.

    Raises:
        ConfigError: It does not.
    """
    if not re.fullmatch(_NAME, name) or name.strip() != name or not name.isprintable() or name in (".", ".."):
        raise ConfigError(f"{name!r} is no name for a model", hint="a name without / : and @, for example ocr-det")
    return name
