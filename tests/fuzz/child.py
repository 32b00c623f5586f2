"""A process that reads inputs of one target; whatever it dies of, the input is kept in its folder."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .mutate import CANARY
from .target import Files, Target
from .targets import TARGETS
from .watch import Watch


def run(name: str, first: int, count: int, home: Path) -> dict[str, Any]:
    """Read so many inputs of a target, the `first` of all on, and return the tally.

    Half are mutations, of which each is a function of its number; half are hypothesis', of which the first number is
    the seed. `home/input` holds the one that is being read.
    """
    target = next(each for each in TARGETS if each.name == name)()
    samples_in, folder = home / "samples", home / "files"
    samples_in.mkdir(parents=True)
    sets = target.samples(samples_in)
    place = Place(target, folder, home / "input")
    for files in sets:  # imports and compiled code are none of an input's
        place.fill(files)
        target.prepare(folder)
        target.read(folder)
    tempfile.tempdir = str(home)  # what a reader unpacks for a while is its own
    watch = Watch(home)
    mutations = count - count // 2
    for number in range(first, first + mutations):
        rng = random.Random(f"{name} {number}")
        files = rng.choice(sets)
        place.try_one(watch, files, *target.mutation(files, sets, rng), f"mutation {number}")
    if count // 2:
        _drawn(target, sets, place, watch, first, count // 2)
    return watch.result()


def _drawn(target: Target, sets: list[Files], place: Place, watch: Watch, first: int, count: int) -> None:
    @seed(first)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(sets).flatmap(lambda files: st.tuples(st.just(files), target.strategy(files))))
    def each(drawn: tuple[Files, tuple[str, bytes]]) -> None:
        files, (victim, content) = drawn
        place.try_one(watch, files, victim, content, f"drawn of {first}")

    each()


class Place:
    """The folder that inputs are put into."""

    def __init__(self, target: Target, folder: Path, keep: Path) -> None:
        self.target, self.folder, self.keep = target, folder, keep
        self._there: Files | None = None

    def fill(self, files: Files) -> None:
        """Have the folder hold a whole set of files, and nothing else."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for name, content in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
        (self.folder / f"{CANARY}.py").write_text(f"open({CANARY!r}, 'w').close()\n") if "s.yaml" in files else None
        self._there = files

    def try_one(self, watch: Watch, files: Files, victim: str, content: bytes, what: str) -> None:
        """Put one file's other content in, read, and put the old one back."""
        if self._there is not files:
            self.fill(files)
        self.keep.write_bytes(f"{victim}\n".encode() + content)
        (self.folder / victim).write_bytes(content)
        self.target.prepare(self.folder)
        before = len(watch.tally.violations)
        watch.run(f"{self.target.name}, {what}, {victim}", self._read, self.target.named(self.folder))
        if len(watch.tally.violations) > before:
            kept = self.keep.with_name(f"violation-{len(watch.tally.violations)}")
            kept.write_bytes(self.keep.read_bytes())
        (self.folder / victim).write_bytes(files[victim])

    def _read(self) -> object:
        return self.target.read(self.folder)


def main(arguments: list[str]) -> None:
    """Print the tally of `NAME FIRST COUNT HOME` as the last line."""
    name, first, count, home = arguments
    said: Callable[[dict[str, Any]], str] = json.dumps
    print(said(run(name, int(first), int(count), Path(home))), flush=True)
