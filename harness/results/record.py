"""The record of one trial."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UserError

SCHEMA_VERSION = 1
Status = Literal["ok", "oom", "timeout", "diverged", "invalid", "error", "skipped"]
Json = dict[str, Any]


class Record(BaseModel):
    """One trial: how it ended, what was run, where, and its figures.

    `config`, `environment`, `dataset`, `partition`, `result` and `ranks` stay plain JSON, so that a record
    outlives the code that wrote it. Figures that could not be had are None, never 0.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = Field(SCHEMA_VERSION, description="of this layout")
    trial: str = Field(description="the trial's id")
    suite: str
    label: str = ""
    status: Status
    reason: str | None = Field(None, description="why the status is not ok, in one line")
    started: str = Field(description="ISO 8601, UTC")
    wall_s: float | None = Field(None, description="from the start of the ranks to the end of the last")
    config: Json = Field(description="the TrialConfig")
    environment: Json = Field(default_factory=dict)
    dataset: Json = Field(default_factory=dict, description="name, origin, note, nodes, edges, ...")
    partition: list[Json] = Field(default_factory=list, description="a row a part, see partition_table")
    result: Json = Field(default_factory=dict, description="what `results.reduce` returns")
    ranks: list[Json] = Field(default_factory=list, description="what each rank wrote, without its epochs")

    def to_json(self) -> str:
        """Return the record as strict JSON: what is not finite becomes null."""
        return json.dumps(finite(self.model_dump(mode="python")), indent=1, allow_nan=False) + "\n"


def read_record(path: Path) -> Record:
    """Read a `record.json`; UserError if it is damaged or of a newer harness."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError("damaged record: not JSON", file=path, fix=_REMOVE) from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UserError(
            f"record of schema {version}, this harness reads up to {SCHEMA_VERSION}",
            file=path,
            fix="upgrade harness",
        )
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise UserError(f"damaged record: {where}{first['msg']}", file=path, fix=_REMOVE) from error


_REMOVE = "remove the trial's directory; the next run repeats it"


def finite(value: Any) -> Any:
    """Return JSON-like `value` with every NaN and infinity replaced by None, numpy scalars by Python's."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def without_epochs(ranks: Sequence[Json]) -> list[Json]:
    """Return the ranks' reports as a record keeps them; the epochs go to `epochs.parquet`."""
    return [{key: value for key, value in rank.items() if key != "epochs"} for rank in ranks]


def epoch_rows(ranks: Sequence[Json]) -> list[Json]:
    """Return the epochs of all ranks, one row an epoch and rank."""
    return [row for rank in ranks for row in rank.get("epochs") or []]
