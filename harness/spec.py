"""Base of what a suite configures, and where the code of a plugin is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Spec(BaseModel):
    """Base of everything a suite file configures: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PluginSource(Spec):
    """Where the code is of what did not come with the tool."""

    file: Path = Field(description="absolute path of the file")
    module: str | None = Field(description="what it is imported as; null: from the file itself")
    cls: str = Field(description="what it is called there")
    sha256: str = Field(description="hash of the file's content when the suite was read")


RENAMED: Mapping[str, str] = {"narrow": "transform_before_exchange"}
"""Options of methods: their names in older suites and records, and today's. A trial's id keeps the older."""


def with_options(data: Any, key: str, options: str) -> Any:
    """Turn `{key: {name: {option: value}}}` into `{key: name, options: {option: value}}`.

    Whatever else `data` is, it is returned as it is, for pydantic to refuse.

    Raises:
        ValueError: `key` names several things, or its options are no mapping.
    """
    if not isinstance(data, dict) or not isinstance(data.get(key), dict):
        return data
    if len(data[key]) != 1:
        raise ValueError(f"{key}: name one thing, with its options: `{key}: {{NAME: {{option: value}}}}`")
    [(name, given)] = data[key].items()
    if given is not None and not isinstance(given, dict):
        raise ValueError(f"{key}: write the options of {name} as `{{{name}: {{option: value}}}}`")
    return data | {key: name, options: given or {}}
