"""The record of one trial."""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from harness.data.prepared import hash_file
from harness.deferred import numpy as np
from harness.errors import UNSEEN, DamagedRecord, UserError, readable
from harness.files import RECORD, read_text
from harness.metrics import METRICS
from harness.models.layer import KEPT
from harness.suite.schema import LATER, TrialConfig
from harness.suite.sections import NetworkSpec

RECORD_FILE, EPOCHS_FILE = "record.json", "epochs.parquet"
REPEAT = "remove the trial's directory; the next run repeats it"
AGAIN = "the next run repeats it"
Status = Literal["ok", "oom", "timeout", "diverged", "invalid", "error", "skipped"]
Json = dict[str, Any]
M = TypeVar("M", bound=BaseModel)
FAMILIES = ("time_", "bytes_")
"""Beginnings of metrics of phases and purposes, a plugin's own ones among them."""


class _Section(BaseModel, extra="allow"):
    name: str | None = None
    options: Json | None = None


class _Shape(BaseModel, extra="allow"):
    """The parts of a TrialConfig, of whatever version, that rows of results read."""

    dataset: _Section | str | None = None
    model: _Section | str | None = None
    train: Json | str | None = None
    partition: _Section | str | None = None
    method: _Section | str | None = None
    network: NetworkSpec | str | None = None


class _Sent(BaseModel, strict=True):
    """A row of what a rank sent."""

    scope: str
    purpose: str
    direction: str
    layer: int
    peer: int
    calls: int
    sent_bytes: int
    received_bytes: int


class _Meters(BaseModel, strict=True):
    interval_s: float | None = None
    pss_interval_s: float | None = None
    unavailable: dict[str, str] | None = None
    counts_for: list[str] = []


class _Rank(BaseModel, strict=True):
    """The parts of a rank's report that are computed with, of whatever version."""

    rank: int | None = Field(None, ge=0)
    inner: int | None = None
    boundary: int | None = None
    traffic: list[_Sent] = []
    traffic_check: Json | None = None
    meters: _Meters | None = None
    remarks: list[Any] | None = None


class _Result(BaseModel, strict=True):
    """Metrics, of whatever version."""

    epochs: int | None = None
    rank_epoch_time_s: list[float] | None = None
    rank_phases: list[dict[str, float | None]] | None = None
    rank_cpu: list[dict[str, float | None]] | None = None
    memory_model: dict[str, float | None] | None = None
    stats: dict[str, float | None] | None = None

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, result: Any) -> Any:
        for key, value in result.items() if isinstance(result, dict) else ():
            number = METRICS[key].value == "number" if key in METRICS else key.startswith(FAMILIES)
            if number and not isinstance(value, int | float | None):
                raise ValueError(f"{key}: bad value {reprlib.repr(value)}: must be a number")
        return result


class _Environment(BaseModel, strict=True):
    """The parts of an environment that are computed with."""

    threads: int | None = None
    usable_cores: int | None = None
    nodes: list[Any] | None = None
    reference_s: float | None = None


_SHAPES: dict[str, TypeAdapter[Any]] = {
    "config": TypeAdapter(_Shape),
    "environment": TypeAdapter(_Environment),
    "result": TypeAdapter(_Result),
    "ranks": TypeAdapter(list[_Rank]),
}


class Record(BaseModel):
    """One trial: how it ended, what was run, where, and its metrics.

    `config`, `environment`, `dataset`, `partition`, `result` and `ranks` stay plain JSON, so that a record
    outlives the code that wrote it. Metrics that are not known are None, never 0. The file also has a `digest` of all
    the rest: a record that was edited is flagged.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = Field(1, description="of this layout")
    trial: str = Field(description="the trial's id")
    suite: str
    label: str = ""
    status: Status
    reason: str | None = Field(None, description="why the status is not ok, in one line")
    flags: list[str] = Field(default_factory=list, description='"KEY: what", each in a line: docs/integrity.md')
    started: str = Field(description="ISO 8601, UTC")
    wall_s: float | None = Field(None, description="from the start of the ranks to the end of the last")
    config: Json = Field(description="the TrialConfig")
    declared: Json = Field(default_factory=dict, description="what the method says of itself: metrics, ...")
    environment: Json = Field(default_factory=dict)
    dataset: Json = Field(default_factory=dict, description="name, origin, note, nodes, edges, ...")
    partition: list[Json] = Field(default_factory=list, description="a row a part, see partition_table")
    partition_fingerprint: str | None = Field(None, description="of the part of each node; the data set's: `dataset`")
    result: Json = Field(default_factory=dict, description="what `results.reduce` returns")
    ranks: list[Json] = Field(default_factory=list, description="what each rank wrote, without its epochs")
    epochs_sha256: str | None = Field(None, description="of `epochs.parquet`")

    @model_validator(mode="before")
    @classmethod
    def _flag_edits(cls, content: Any) -> Any:
        if not isinstance(content, dict) or "digest" not in content:  # records that are older than digests
            return content
        if content["digest"] == digest_of(content) or not isinstance(content.get("flags", []), list):
            return content
        return content | {"flags": [*content.get("flags", []), _EDITED.format(RECORD_FILE)]}

    @field_validator(*_SHAPES)
    @classmethod
    def _shaped(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name == "config" or info.context == KEPT:
            try:
                _SHAPES[info.field_name or ""].validate_python(value)
            except ValidationError as error:
                raise ValueError(_first(error, ".")) from None
        return value

    @field_validator("declared")
    @classmethod
    def _sound(cls, declared: Json) -> Json:
        # Reports draw and compute with it: what is of another kind than it should be counts as not declared.
        kinds: dict[str, Any] = {
            "defaults": dict,
            "presets": dict,
            "numbers": list,
            "metrics": list,
            "baseline": dict | None,
        }
        kept = {key: value for key, value in declared.items() if isinstance(value, kinds.get(key, object))}
        if not _COLOUR.fullmatch(str(kept.get("colour") or "#000000")):
            del kept["colour"]
        if "metrics" in kept:
            kept["metrics"] = [each for each in kept["metrics"] if _is_metric(each)]
        if "numbers" in kept:
            kept["numbers"] = [each for each in kept["numbers"] if isinstance(each, str)]
        return kept

    @property
    def data(self) -> str | None:
        """Fingerprints of data set and partition as in a trial's `data`; None where the record lacks them."""
        graph = self.dataset.get("fingerprint")
        return f"{graph}.{self.partition_fingerprint or ''}" if graph else self.config.get("data")

    def to_json(self) -> str:
        """Return the record as strict JSON: what is not finite becomes null."""
        content = finite(self.model_dump(mode="python"))
        return json.dumps(content | {"digest": digest_of(content)}, indent=1, allow_nan=False) + "\n"


_ESCAPED = re.compile(r"\\(?:[rbf]|u(?:00[0189]|007f|061c|200[b-f]|202[89a-e]|206|feff|fff|db4))", re.I)  # UNSEEN
_COLOUR = re.compile("#[0-9a-fA-F]{6}")
EDITED = "edited"  # the flag
_EDITED = EDITED + ": {} was changed after it was written"


def _is_metric(declared: Any) -> bool:
    words = isinstance(declared, dict) and all(isinstance(each, str | bool | None) for each in declared.values())
    known = words and declared.get("better") in (None, "less", "more") and isinstance(declared.get("name"), str)
    return bool(known) and declared.get("value", "number") in ("number", "words")


def digest_of(content: Json) -> str:
    """Return the SHA-256 of a record's content without its own `digest`, however it is laid out.

    It shows mistakes, no forgeries: a forger can compute it, too.
    """
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def as_kept(**fields: Any) -> Record:
    """Return a record as it will be read; ValueError, in one line, if it could not be."""
    try:
        return Record.model_validate(finite(fields), context=KEPT)
    except ValidationError as error:
        raise ValueError(_first(error, ": ")) from None


def read_record(path: Path) -> Record:
    """Read a `record.json`; UserError if it is damaged or of a newer harness, OSError if it cannot be read.

    It is flagged if it, or its file of epochs, is not as it was written.
    """
    record = read_versioned(path, Record, "record", "damaged record", AGAIN)
    if record.epochs_sha256 is not None:
        with suppress(OSError):  # a reader of the epochs reports that they cannot be read
            if hash_file(path.with_name(EPOCHS_FILE)) != record.epochs_sha256:
                return record.model_copy(update={"flags": [*record.flags, _EDITED.format(EPOCHS_FILE)]})
    return record


def read_versioned(path: Path, kind: type[M], what: str, damaged: str, fix: str) -> M:
    """Read JSON with a `schema_version` as a `kind`; NaN, infinities and half characters are no JSON.

    `what`, `damaged`: words for the file, and for a damaged one; `fix`: of damage. UserError if it is damaged (of a
    record DamagedRecord), newer than the `kind`, too large or no regular file, OSError if it cannot be read.
    """

    wrong = DamagedRecord if kind is Record else UserError

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        text = read_text(path, RECORD)
        content = json.loads(text, parse_constant=refuse)
        if "\\u" in text:
            json.dumps(content, ensure_ascii=False).encode()  # half a character could not be printed
    except (ValueError, RecursionError) as error:
        raise wrong(f"{damaged}: not JSON", file=path, fix=fix) from error
    found = content.get("schema_version") if isinstance(content, dict) else None
    known = kind.model_fields["schema_version"].default
    if isinstance(found, int) and found > known:
        message = f"{what} of schema {found}, this harness reads up to {known}"
        raise UserError(message, file=path, fix="upgrade harness")
    try:
        read = kind.model_validate(content, context=KEPT)
        if UNSEEN.search(text) or _ESCAPED.search(text):  # the digest is that of what was written
            flags = {"flags": read.flags} if isinstance(read, Record) else {}
            clean = {key: value for key, value in (content | flags).items() if key != "digest"}
            read = kind.model_validate(readable(clean), context=KEPT)
        return read
    except ValidationError as error:
        raise wrong(f"{damaged}: {_first(error, ': ')}", file=path, fix=fix) from error


def _first(error: ValidationError, between: str) -> str:
    first = error.errors()[0]
    where = between.join(map(str, first["loc"]))
    return ": ".join(filter(None, (where, first["msg"].removeprefix("Value error, "))))


def read_kept(path: Path, kind: type[M], what: str, fix: str) -> M:
    """Read a file that is kept with records as `read_versioned` does; UserError also if it cannot be read."""
    try:
        return read_versioned(path, kind, what, "damaged", fix)
    except OSError as error:
        raise UserError("damaged: not JSON", file=path, fix=fix) from error


def suite_files(directories: Sequence[Path], name: str) -> Iterator[Path]:
    """Yield the files of a name in suites' directories; a directory is a results directory, a suite's or a trial's."""
    for place in directories:
        home = place.resolve().parent if (place / RECORD_FILE).is_file() else place
        yield from sorted([*home.glob(name), *home.glob(f"*/{name}")])


def flatten(value: object, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return flat


def is_baseline(declared: Json, options: Mapping[str, Any], family: str) -> bool:
    """Return whether methods of a family are compared with one that declares this, at these options."""
    said = declared.get("baseline")
    same = said is not None and all(options.get(name, value) == value for name, value in said.items())
    return same and declared.get("family") == family


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


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as `section.key` and plain values: lists as text, of a path its name."""

    def plain(key: str, value: Any) -> str | int | float | None:
        if key == "partition.file" and isinstance(value, str):
            return PurePath(value).name
        return value if isinstance(value, str | int | float | None) else json.dumps(value)

    return {key: plain(key, value) for key, value in flatten(config).items()}


def of_workload(config: Json) -> Json:
    """Return a configuration as the suite's other methods have it: without the method's own settings."""
    usual = {key: value for key, value in config.items() if key != "shared"}
    for key, value in (config.get("shared") or {}).items():
        section, _, name = key.partition(".")
        usual[section] = {**usual.get(section, {}), name: value}
    return usual


def own_settings(config: Json) -> Json:
    """Return a method's own settings, e.g. {"train.lr": 0.003}."""
    keys = (key.partition(".") for key in config.get("shared") or {})
    return {f"{section}.{key}": (config.get(section) or {}).get(key) for section, _, key in keys}


def other_model(config: Mapping[str, Any]) -> str | None:
    """Return the name of the model where it is another than the suite's, see `Method.model_of`; else None."""
    own = {key for key in config.get("shared") or {} if key.startswith("model.")} - {"model.norm", "model.dropout"}
    return str(config["model"]["name"]) if own else None


def whole_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `flat_config` with the keys that came after the record, at their defaults: old and new ones agree."""
    later = {key: value for key, value in LATER.items() if not isinstance(value, Mapping)}
    return flat_config(later) | flat_config(config)


BITS = ("checksum", "final_loss", "final_val", "final_test", "best_val", "test_at_best_val")
SAME = ("machine", "threads", "packages", "commit", "dirty", "python")  # of the environment: else bits may differ


def unlike(record: Record, trial: TrialConfig, directory: Path, repeats: int) -> list[str]:
    """Return a flag if the scores or weights of a trial are not the same bits as those of another of its repeats.

    `directory`: the suite's results; `repeats`: how many to look for. Runs on GPUs, on other machines or data, with
    other threads or other code are not compared.
    """
    if record.status != "ok" or trial.device != "cpu":  # on a GPU sums are taken in any order
        return []
    for number in range(repeats):
        path = directory / trial.model_copy(update={"repeat": number}).id / RECORD_FILE
        if number == trial.repeat or not path.is_file():
            continue
        try:
            other = read_record(path)
        except UserError:  # a damaged one is reported when the results are read
            continue
        if other.status != "ok" or other.data != record.data:
            continue
        if any(other.environment.get(key) != record.environment.get(key) for key in SAME):
            continue
        mine, its = record.result, other.result
        if differ := [name for name in BITS if mine.get(name) != its.get(name)]:
            what = ", ".join(f"{name} {its.get(name)} and {mine.get(name)}" for name in differ)
            return [f"repeat: not the same bits as repeat {number}, on the same machine: {what}"]
    return []
