"""Results of several places put together, nothing overwritten."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import UserError
from harness.results.frames import record_places
from harness.results.record import Record
from harness.results.store import ResultStore, read_at, records_under
from harness.results.suite_file import SUITE_FILE

Keep = Literal["first", "latest"]
CONTENT = ("record.json", "epochs.parquet")  # what makes two trials the same; logs may be lost on the way


@dataclass(frozen=True)
class Merged:
    """How many trials were copied, were there already, and gave way to another of their id."""

    copied: int
    same: int
    dropped: int


@dataclass(frozen=True)
class _Found:
    """A record, the directory it lies in, and whether that is of the results that others are added to."""

    record: Record
    place: Path
    there: bool = False


def merge(out: Path, sources: Sequence[Path], keep: Keep | None = None) -> Merged:
    """Copy the trials below `sources` (results directories, suites' or trials') into the results at `out`.

    A trial that is twice with equal content is there once. Of two that differ `keep` says which is taken: the
    first, where `out` comes before all sources, or the one that was started last. Nothing is copied before
    everything was read. `suite.json` is the first there is.

    Raises:
        UserError: a trial twice that differs and no `keep`; a damaged record; a run is writing to `out`.
    """
    found = [_read(place) for source in sources for place in record_places(source)]
    if not found:
        raise UserError("holds no finished trial", file=sources[0])
    stores = {each.record.suite: ResultStore(out, each.record.suite) for each in found}
    chosen = {
        (suite, place.name): _Found(read_at(place), place, there=True)
        for suite, store in stores.items()
        for place in records_under(store.directory)
    }
    same = dropped = 0
    for new in found:
        key = (new.record.suite, new.record.trial)
        old = chosen.setdefault(key, new)
        if old is new:
            continue
        if _equal(old.place, new.place):
            same += 1
            continue
        dropped += 1
        chosen[key] = _taken(old, new, keep)
    copied = [each for each in chosen.values() if not each.there]
    for suite, store in stores.items():
        with store.lock():
            store.clean()
            for each in copied:
                if each.record.suite == suite:
                    store.adopt(each.place, each.record.trial)
            _keep_suite(store.directory, [each.place.parent for each in found if each.record.suite == suite])
    return Merged(len(copied), same, dropped)


def _read(place: Path) -> _Found:
    """Read a record that becomes a directory of its trial's name."""
    record = read_at(place)
    if record.trial != place.name.partition(".")[0]:
        what = f"is the record of trial '{record.trial}'"
        raise UserError(what, file=place, fix="a trial's directory has its name: remove it")
    return _Found(record, place)


def _equal(one: Path, other: Path) -> bool:
    _, different, missing = filecmp.cmpfiles(one, other, CONTENT, shallow=False)
    return not different and not missing


def _taken(old: _Found, new: _Found, keep: Keep | None) -> _Found:
    if keep is None:
        what = f"trial {new.record.trial} ({new.record.label}) is in {old.place} too, and differs"
        raise UserError(what, file=new.place, fix="--keep first, or --keep latest: the one started last")
    return new if keep == "latest" and new.record.started > old.record.started else old


def _keep_suite(directory: Path, sources: Sequence[Path]) -> None:
    """Give results the `suite.json` of the first source that has one, if they have none."""
    for source in sources:
        if (source / SUITE_FILE).is_file() and not (directory / SUITE_FILE).exists():
            shutil.copyfile(source / SUITE_FILE, directory / SUITE_FILE)
