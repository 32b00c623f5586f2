"""One odd value anywhere in a record: the record is damaged, or all that is computed from it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from support.tiers import tiered

from harness.errors import DamagedRecord
from harness.report.columns import record_values
from harness.results.frames import load_inputs
from harness.results.projection import HostLink, project, why_not
from harness.results.record import read_record

from .fake import METHODS, write_results

ODD = (None, "x", -7, 10**15, True, [1], {"a": []})


def places(value: Any, *where: str | int) -> Iterator[tuple[str | int, ...]]:
    if where:
        yield where
    for key, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from places(item, *where, key)


def changed(content: Any, where: tuple[str | int, ...], odd: Any) -> Any:
    content = place = deepcopy(content)
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = odd
    return content


@pytest.mark.quick(1)
@pytest.mark.parametrize("part", tiered(["result", "ranks", "environment", "dataset"], ["environment", "dataset"]))
def test_an_odd_value_is_refused_or_harmless(tmp_path: Path, part: str) -> None:
    made = write_results(tmp_path / "r", methods=METHODS[1:2], parts=(2,), seeds=(0,), epochs=2)
    (path,) = made.glob("*/*/record.json")
    record = json.loads(path.read_text())
    del record["digest"]
    every, seen = [(part, *where) for where in places(record[part])], {"damaged": 0, "read": 0}
    failed = list[str]()
    assert len(every) > 2
    for where in [(part,), *every]:
        for odd in ODD:
            path.write_text(json.dumps(changed(record, where, odd)))
            try:
                read = read_record(path)
            except DamagedRecord:
                seen["damaged"] += 1
                continue
            seen["read"] += 1
            try:
                record_values(read)
                if why_not(read) is None:
                    project(read, HostLink(1e9, 1e-4))
                if not isinstance(odd, int):
                    load_inputs(made)
            except Exception as error:
                failed.append(f"{odd!r} at {'.'.join(map(str, where))}: {error!r}")
    assert not failed, "\n".join(failed)
    assert min(seen.values()) > 0
