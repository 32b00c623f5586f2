"""A suite as a file."""

from __future__ import annotations

import io
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from harness.errors import writing
from harness.suite.schema import Suite


def as_written(suite: Suite) -> dict[str, Any]:
    """Return the keys that a suite gives, as a file has them: plain values that `Suite` takes."""
    data: dict[str, Any] = suite.model_dump(mode="json", exclude_unset=True)
    for section in ("datasets", "methods"):
        data[section] = [_entry(entry) for entry in data[section]]
    for section in ("model", "train", "partition", "network"):
        if section in data and len(data[section]) == 1:
            data[section] = data[section][0]
    return data


def write_suite_file(suite: Suite, path: Path) -> Path:
    """Write a suite as YAML that `load_suite` reads as the same suite, whole or not at all; returns the path."""
    data = as_written(suite)
    writer: Any = YAML(typ="safe", pure=True)
    writer.default_flow_style, writer.width, writer.sort_base_mapping_type_on_output = None, 120, False
    text = io.StringIO()
    writer.dump(data, text)
    write_whole(path, text.getvalue())
    return path


def write_whole(path: Path, text: str, temporary: Path | None = None) -> None:
    """Write a file whole or not at all, whoever else writes it; by way of `temporary`, on the same file system.

    That is what stays behind where this process is killed. By default it is beside the file.
    """
    temporary = temporary or path.with_name(f".{path.name}.{uuid.uuid4().hex[:10]}")
    try:
        with writing(path), temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:  # an interrupt, too
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _entry(entry: dict[str, Any]) -> Any:
    return {entry["name"]: entry["options"]} if entry.get("options") else entry["name"]
