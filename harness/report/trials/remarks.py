"""What methods remark on their trials, said once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.report.trials.inputs import Inputs, RecordKey
from harness.report.trials.sections import trials

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def merged_remarks(inputs: Inputs) -> Iterator[tuple[str, str]]:
    """Yield (method, remark) of all ranks of all trials; remarks that differ in numbers only are one.

    It names the lowest and the highest of the numbers, and how many trials it is of if not of all.
    """
    said: dict[tuple[str, str], dict[str, None]] = {}
    where: dict[tuple[str, str], set[RecordKey]] = {}
    asked: dict[str, int] = {}
    for key, record in inputs.records.items():
        method = str(record.config["method"]["name"])
        asked[method] = asked.get(method, 0) + 1
        for remark in (str(remark) for rank in record.ranks for remark in rank.get("remarks") or ()):
            kind = method, _NUMBER.sub("0", remark)
            said.setdefault(kind, {})[remark] = None
            where.setdefault(kind, set()).add(key)
    for (method, pattern), remarks in said.items():
        count = len(where[method, pattern])
        scope = "" if count == asked[method] else f" ({count} of {trials(asked[method])})"
        yield method, _merge(list(remarks)) + scope


def _merge(remarks: list[str]) -> str:
    """Return remarks that differ in numbers only as one, with the range of each number."""
    ranges = iter([_range(numbers) for numbers in zip(*map(_NUMBER.findall, remarks), strict=True)])
    return _NUMBER.sub(lambda _: next(ranges), remarks[0])


def _range(numbers: tuple[str, ...]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if float(low) == float(high) else f"{low} to {high}"
