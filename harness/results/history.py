"""What a metric did over the versions of a code: where it changed, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.metrics import Metric
from harness.results.compare import SAME, UNSURE, Compared, Trial, compare, differences, pair
from harness.results.frames import read_all
from harness.results.store import record_places

COMMIT_DIGITS = 8


@dataclass(frozen=True)
class Version:
    """The trials of one commit, as they started; `name`: its first digits, + where files differed, or a directory's."""

    name: str
    trials: tuple[Trial, ...]

    @property
    def started(self) -> str:
        """When the first of them began."""
        return self.trials[0].record.started


@dataclass(frozen=True)
class Point:
    """A version beside the one of the last change, `since` (None of the first): each trial, and all together.

    `why`: why they are not compared.
    """

    version: Version
    since: Version | None = None
    rows: tuple[Compared, ...] = ()
    whole: Compared | None = None
    why: str = ""

    @property
    def changed(self) -> tuple[Compared, ...]:
        """What surely changed: trials, or else all of them together."""
        sure = [row for row in (*self.rows, self.whole) if row and row.verdict not in (SAME, UNSURE)]
        return tuple(row for row in sure if row is not self.whole) or tuple(sure[:1])


def versions(directories: Iterable[Path]) -> list[Version]:
    """Return the versions whose trials lie under directories, the first that ran first; of a trial's runs the last.

    Raises:
        UserError: a directory that is missing or holds no trial, a damaged record.
    """
    found: dict[str, dict[str, Trial]] = {}
    every = []
    for directory in directories:
        places = record_places(directory)
        if not places:
            raise UserError("holds no finished trial", file=directory, fix="run `harness run SUITE` first")
        every += [(directory, Trial(*each)) for each in zip(read_all(places), places, strict=True)]
    for directory, trial in sorted(every, key=lambda each: (each[1].record.started, each[1].record.trial)):
        found.setdefault(_version_of(trial, directory), {})[trial.record.trial] = trial
    listed = [Version(name, tuple(trials.values())) for name, trials in found.items()]
    return sorted(listed, key=lambda version: version.started)


def _version_of(trial: Trial, directory: Path) -> str:
    where = trial.record.environment
    commit = where.get("commit")
    return f"{commit[:COMMIT_DIGITS]}{'+' * bool(where.get('dirty'))}" if commit else directory.resolve().name


def history(found: Sequence[Version], metric: Metric) -> list[Point]:
    """Compare each version with that of the last change, so that many small changes are found as one.

    Of a code that never changes at most 5 % of histories have any change, however many versions they are of.
    """
    if not found:
        return []
    points, since = [Point(found[0])], found[0]
    for version in found[1:]:
        point = _compared(since, version, metric, len(found) - 1)
        points.append(point)
        if point.why or point.changed:
            since = version
    return points


def _compared(since: Version, version: Version, metric: Metric, comparisons: int) -> Point:
    try:
        pairs = pair(since.trials, version.trials).pairs
    except UserError as error:
        return Point(version, since, why=error.message)
    ok = [each for each in pairs if each.ok]
    hardware = differences(ok).hardware if ok and metric.machine else ()
    if hardware:
        return Point(version, since, why=f"another machine ({'; '.join(hardware)})")
    rows, whole = compare(ok, metric, comparisons=comparisons)
    if whole is None:
        return Point(version, since, why=f"no trial of both ended well with '{metric.name}'")
    return Point(version, since, tuple(rows), whole)
