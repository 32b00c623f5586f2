"""What a rank reports is checked before anything is made of it: a method may have put anything in."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, ValidationError

Number = StrictInt | StrictFloat
LARGEST = 2**63 - 1  # what columns of `epochs.parquet` can hold


class _Kept(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Epoch(_Kept):
    epoch: Annotated[StrictInt, Field(ge=0)]
    rank: Annotated[StrictInt, Field(ge=0)] | None = None
    epoch_time_s: Number | None = None
    stats: dict[str, Any] | None = None


class _Report(_Kept):
    """What is read of `rank{r}.json` before its metrics are, see `harness.runtime.report`."""

    rank: Annotated[StrictInt, Field(ge=0)]
    status: StrictStr
    reason: StrictStr | None = None
    summary: dict[str, Any] | None = None
    flags: list[tuple[StrictStr, StrictStr]] = []
    meters: dict[str, Any] | None = None
    epochs: list[_Epoch] = []


def what_is_odd(report: dict[str, Any], rank: int) -> str | None:
    """Return what is wrong with the report of a rank, in words; None if nothing is."""
    try:
        _Report.model_validate(report)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{_place(first['loc'])}: {first['msg']}, found {_short(first['input'])}"
    if report["rank"] != rank:
        return f"rank: is {report['rank']}"
    return odd_number(report)


def is_plain_epoch(row: dict[str, Any]) -> bool:
    """Return whether a row of `epochs-{r}.jsonl` can be kept."""
    try:
        _Epoch.model_validate(row)
    except ValidationError:
        return False
    return odd_number(row) is None


def odd_number(value: Any, *where: str | int) -> str | None:
    """Return the first integer of JSON-like `value` that needs more than 64 bits, and where it is; else None."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        found = (odd_number(item, *where, key) for key, item in items)
        return next((odd for odd in found if odd is not None), None)
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"{_place(where)}: {_short(value)} needs more than 64 bits"
    return None


def _place(where: tuple[str | int, ...]) -> str:
    return ".".join(map(str, where))


def _short(value: Any) -> str:
    # A number of many digits takes Python minutes to write, and it refuses.
    text = f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > LARGEST else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
