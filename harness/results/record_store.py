"""Suites' records on disk: written whole, read, merged; with `suite.json`, what was to be run and what it claims."""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.data.prepared import hash_file, sync
from harness.errors import DamagedRecord, UserError, pass_over
from harness.files import open_regular, size_text, write_whole
from harness.results.environment import at_middle, measurements, note
from harness.results.leases import LEASES, RUNNERS, Leases, Runner, Runners, named
from harness.results.record import AGAIN, EPOCHS_FILE, RECORD_FILE, Record, read_kept, read_record, suite_files
from harness.suite.schema import PLAIN_NAME, Suite, TrialConfig
from harness.suite.sections import Claim

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow import RecordBatch
    from pyarrow.parquet import ParquetFile

SUITE_FILE = "suite.json"


class KeptSuite(BaseModel):
    """A suite as it was run last, with its trials: data sets and plugins may be gone when it is read."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = Field(1, description="of this layout")
    file: str | None = Field(None, description="the suite file's name, without its directory")
    suite: dict[str, Any] = Field(description="the Suite with its overrides")
    name: str
    claims: tuple[Claim, ...] = ()
    trials: tuple[TrialConfig, ...] = Field((), description="every trial of it, selected to run or not")
    decided: str = Field("", description="why rounds of fresh seeds ended; empty where they have not, or are none")

    @property
    def rounds(self) -> bool:
        """Whether some trials have fresh seeds that others have not (`run --until decided`, `run --twin`)."""
        return bool(self.suite.get("first_look") or self.suite.get("first_seeds"))

    @property
    def looks(self) -> tuple[tuple[int, ...], ...]:
        """The seeds that were compared, time after time (`run --until decided`); none where they are compared once."""
        first, seeds = self.suite.get("first_look"), tuple(self.suite.get("seeds") or ())
        if not first:
            return ()
        before = itertools.takewhile(len(seeds).__gt__, seeds_at_looks(first))
        return tuple(seeds[:count] for count in (*before, len(seeds)))


def seeds_at_looks(first: int) -> Iterator[int]:
    """Yield how many seeds are there at each look: half as many more each time, as every look costs risk.

    From 5 on: 7, 10, 15, 22, ... (docs/design/statistics.md).
    """
    while True:
        yield first
        first += max(1, first // 2)


def kept(suite: Suite, trials: Sequence[TrialConfig]) -> KeptSuite:
    """Return what is to be kept of a suite that has these trials."""
    file = suite.source.file
    return KeptSuite(
        file=file.name if file else None,
        suite=suite.model_dump(mode="json", exclude={"claims"}),
        name=suite.name,
        claims=suite.claims,
        trials=tuple(trials),
    )


def write_suite(directory: Path, suite: KeptSuite, temporary: Path | None = None) -> None:
    """Write `suite.json` into a suite's directory of results, see `write_whole`."""
    write_whole(directory / SUITE_FILE, suite.model_dump_json(indent=1) + "\n", temporary)


def read_suite(path: Path) -> KeptSuite:
    """Read a `suite.json`; UserError if it is damaged or of a newer harness."""
    fix = "remove it; `harness check-claims --suite FILE` works without it"
    return read_kept(path, KeptSuite, "suite", fix)


def kept_suites(directories: Sequence[Path]) -> dict[str, KeptSuite]:
    """Return the suites kept with results, by name; of two of one name the last directory's."""
    return {suite.name: suite for suite in map(read_suite, suite_files(directories, SUITE_FILE))}


STAGING = ".staging"
CHECKPOINTS = ".checkpoints"
REPLACED = ".old"  # suffix of a record, under .staging, whose successor is being put in place
LOOKS = 3  # times that a reader looks for a record that runners replace meanwhile
BUILT = ".commit"  # suffix of a record, under .staging, that is not whole yet


class ResultStore:
    """The records of one suite under a results directory."""

    def __init__(self, root: Path, suite: str) -> None:
        if not re.fullmatch(PLAIN_NAME, suite):
            raise UserError(f"'{suite}' cannot name a directory", key="name", fix="letters, digits, . _ -")
        self.root, self.suite = root, suite
        self.directory = root / suite
        self.staging = self.directory / STAGING
        self.owner = uuid.uuid4().hex[:10]

    def runner(self) -> Runner:
        """Return this process as a runner of the suite, to be entered before anything is staged or committed.

        UserError if a link would have it write, or remove, elsewhere.
        """
        for name in (STAGING, RUNNERS, LEASES):
            if (self.directory / name).is_symlink():
                raise UserError("is a link, which no run writes through", file=self.directory / name, fix="remove it")
        return Runner(self.directory, self.owner)

    def leases(self) -> Leases:
        """Return the leases of the suite's trials, taken by `runner()`."""
        return Leases(self.directory, self.owner, Runners(self.directory))

    def finished(self) -> dict[str, str]:
        """Return the status of every complete record by trial id; a damaged one, or without epochs, is named."""
        found: dict[str, str] = {}
        for path in records_under(self.directory):
            try:
                status = read_at(path).status
                _check_epochs(path)
                found[path.name.removesuffix(REPLACED)] = status
            except DamagedRecord as error:
                pass_over(error)
        return found

    def stage(self, trial_id: str, suffix: str = "") -> Path:
        """Return an empty working directory for a trial; `commit` or `clean` removes it."""
        if not re.fullmatch(PLAIN_NAME, trial_id):
            raise ValueError(f"not a trial id: {trial_id!r}")
        path = self.staging / f"{trial_id}-{self.owner}{suffix}"
        _remove(path)
        path.mkdir(parents=True)
        return path

    def keep_suite(self, suite: KeptSuite) -> None:
        """Write `suite.json`; the next runner's `clean` removes what a killed one left of it."""
        self.staging.mkdir(parents=True, exist_ok=True)
        write_suite(self.directory, suite, self.staging / f"suite-{self.owner}")

    def checkpoints(self, trial_id: str) -> Path:
        """Return the directory of a trial's checkpoints, which outlive a trial that is cut off."""
        return self.directory / CHECKPOINTS / trial_id

    def forget(self, trial_id: str) -> None:
        """Remove a trial's checkpoints."""
        home = self.checkpoints(trial_id)
        _remove(home)
        with contextlib.suppress(OSError):  # it holds others, or is not there
            home.parent.rmdir()

    def drop(self, trial_id: str) -> None:
        """Remove a trial's stage; nothing is committed."""
        shutil.rmtree(self.staging / f"{trial_id}-{self.owner}", ignore_errors=True)

    def clean(self, leases: Leases) -> None:
        """Remove the files of dead runners, and put back a record that they were replacing."""
        held = {trial for trial, lease in leases.latest().items() if leases.holder(lease) is not None}
        for path in _listed(self.staging):
            if path.name.endswith(REPLACED):
                trial = path.name.removesuffix(REPLACED)
                if trial not in held and not (self.directory / trial).exists():
                    path.rename(self.directory / trial)
                    continue
                dead = trial not in held
            else:
                owner = path.name.removesuffix(BUILT).rpartition("-")[2]
                dead = owner != self.owner and leases.runners.dead(owner) is not None
            if dead:
                _remove(path)
        leases.runners.bury()

    def commit(self, trial_id: str, record: Record, epochs: Sequence[dict[str, Any]], log: str) -> Path:
        """Write a record as `<trial id>/`, in place of an older one, and remove the trial's stage.

        Killed at any moment, it leaves the older record (or none) or the new one, never a part.
        """
        built = self.stage(trial_id, BUILT)
        write_epochs(epochs, built / EPOCHS_FILE)
        record = record.model_copy(update={"epochs_sha256": hash_file(built / EPOCHS_FILE)})
        (built / "log.txt").write_text(log, encoding="utf-8", errors="replace")
        (built / RECORD_FILE).write_text(record.to_json(), encoding="utf-8")
        home = self._put(built, trial_id)
        self.drop(trial_id)
        return home

    def adopt(self, place: Path, trial_id: str) -> Path:
        """Copy a whole record's directory here as `<trial id>/`, in place of an older one; as `commit`.

        Plain files only: a link would lead out of the results.
        """
        built = self.stage(trial_id, BUILT)
        for file in place.iterdir():
            if file.is_file() and not file.is_symlink():
                shutil.copyfile(file, built / file.name)
        return self._put(built, trial_id)

    def _put(self, built: Path, trial_id: str) -> Path:
        """Flush a filled directory and rename it to its final name; one cannot be renamed over another."""
        for path in [*built.iterdir(), built]:
            sync(path)
        home, old = self.directory / trial_id, self.staging / f"{trial_id}{REPLACED}"
        if home.exists() or home.is_symlink():
            _remove(old)
            home.rename(old)
        built.rename(home)
        sync(self.directory)
        with contextlib.suppress(FileNotFoundError):  # there was none, or the next runner put it away
            old.rename(built)  # a reader of the old record never finds a part of it
        _remove(built)
        return home


def _remove(path: Path) -> None:
    """Remove a file, or a directory with all that it holds; of a link, the link."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def records_under(directory: Path) -> list[Path]:
    """Return the directories of the complete records of a suite, by trial id.

    Includes a record that a runner moved aside and whose successor is not there (yet).
    """
    names: set[str] = set()
    for _ in range(LOOKS):
        names |= {path.name for path in _listed(directory) if not path.name.startswith(".")}
        aside = (path.name for path in _listed(directory / STAGING))
        names |= {name.removesuffix(REPLACED) for name in aside if name.endswith(REPLACED)}
    found = (next((p for p in _places(directory, name) if (p / RECORD_FILE).is_file()), None) for name in names)
    return sorted(filter(None, found), key=lambda path: path.name)


def _places(directory: Path, trial: str) -> list[Path]:
    """Return where a trial's record is, to be looked at one after the other.

    Between two looks it may move aside, and its successor come, any number of times.
    """
    return [directory / trial, directory / STAGING / f"{trial}{REPLACED}"] * LOOKS


def read_at(path: Path) -> Record:
    """Read the record in a directory that `records_under` returned, also when it has moved since."""
    trial = path.name.removesuffix(REPLACED)
    suite = path.parent.parent if path.parent.name == STAGING else path.parent
    for place in (path, *_places(suite, trial)):
        with contextlib.suppress(FileNotFoundError):
            return read_record(place / RECORD_FILE)
    raise UserError("record disappeared while it was read", file=path, fix="try again")


def _listed(directory: Path) -> list[Path]:
    """Return the entries of a directory; none if it does not exist."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


MOST_CELLS = 50_000_000  # of a table of epochs: a million rows (an epoch of a rank each) of 50 columns
_PARQUET_END = b"PAR1"
EPOCH_COLUMNS = (
    *("suite", "trial", "epoch", "rank", "epoch_time_s", "steps", "loss", "lr"),
    *("train_score", "val_score", "test_score", "sampled_val_score", "sampled_test_score", "eval_s"),
)


def write_epochs(epochs: Sequence[dict[str, Any]], path: Path) -> None:
    """Write rows of epochs as parquet, their `stats` as columns `stat_<name>`."""
    import pandas as pd  # slow, and most commands that import this module need no epochs

    rows = []
    for epoch in epochs:
        stats = epoch.get("stats") or {}
        row = {key: value for key, value in epoch.items() if key != "stats"}
        rows.append(row | {f"stat_{key}": value for key, value in stats.items()})
    frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(EPOCH_COLUMNS[2:]))
    for name, column in frame.items():
        if column.dtype == object:  # a column of scores that were never taken (None) is numeric, too: NaN
            try:
                frame[name] = pd.to_numeric(column)
            except (ValueError, TypeError):
                frame[name] = column.map(lambda value: value if value is None else str(value))
    frame.to_parquet(path, index=False)


def read_epochs(path: Path) -> pd.DataFrame:
    """Read an `epochs.parquet`; UserError if it is missing, damaged, or larger than `MOST_CELLS` allows."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        with open_regular(path) as stream, parquet.ParquetFile(stream) as file:
            stated = file.metadata
            if stated.num_rows * max(1, stated.num_columns) > MOST_CELLS:
                raise ValueError(f"{stated.num_rows} rows of {stated.num_columns} columns are no trial's")
            # The record says to which trial they belong.
            if twice := {"suite", "trial"}.intersection(file.schema_arrow.names):
                raise ValueError(f"they have a column '{min(twice)}'")
            table = pa.Table.from_batches(_bounded(file), file.schema_arrow)
            frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"damaged epochs: {why}", file=path, fix="remove the trial's directory") from error
    return frame


def _bounded(file: ParquetFile) -> Iterator[RecordBatch]:
    """Yield a parquet file's content; ValueError once it is more than a table of numbers has.

    A text that is in the file once may be in every row, so only a few rows of texts are unpacked at a time.
    """
    columns = range(file.metadata.num_columns)
    texts = any("BYTE_ARRAY" in file.schema.column(i).physical_type for i in columns)
    total = 0
    for batch in file.iter_batches(256 if texts else 1 << 16):
        total += batch.nbytes
        if total > 8 * MOST_CELLS:
            raise ValueError(f"holds more than {size_text(8 * MOST_CELLS)}")
        yield batch


def _check_epochs(place: Path) -> None:
    """Raise DamagedRecord if a record's epochs are gone or cut short; their content is not read."""

    def identity() -> tuple[int, int] | None:
        try:
            found = place.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_ctime_ns

    path, before = place / EPOCHS_FILE, identity()
    try:
        with path.open("rb") as file:
            file.seek(-len(_PARQUET_END), os.SEEK_END)
            whole = file.read() == _PARQUET_END
    except OSError:
        # The record has just moved, and another may have its name already.
        whole = not (place / RECORD_FILE).exists() or identity() != before
    if not whole:
        raise DamagedRecord("damaged record: its epochs are gone or cut short", file=path, fix=AGAIN)


def read_records(path: Path, *, required: bool = False) -> dict[Path, Record]:
    """Read the records under a results directory, a suite's or a trial's, by the trials' directories.

    Each has the reference workload's time nearest to its trial. A damaged one is named and passed over. `required`:
    there has to be one. UserError if the directory does not exist, or all its records are damaged.
    """
    found, damaged = dict[Path, Record](), list[DamagedRecord]()
    for place in record_places(path):
        try:
            record = read_at(place)
            _check_epochs(place)
            found[place] = record
        except DamagedRecord as error:
            damaged.append(error)
    if damaged and not found:
        raise damaged[0]
    for each in damaged:
        pass_over(each)
    if required and not found:
        raise UserError("holds no finished trial", file=path, fix="run `harness run SUITE` first")
    known = {suite: measurements(suite) for suite in {place.parent for place in found}}
    return {place: at_middle(record, known[place.parent]) for place, record in found.items()}


def require_directory(path: Path) -> None:
    """UserError unless it is a directory, with what a suite's file or name may mean."""
    if not path.is_dir():
        meant = Path("results") / path.stem
        what = "is a file, no directory of results" if path.exists() else "no such directory of results"
        fix = f"did you mean {meant}?" if meant.is_dir() else "run `harness run SUITE` first"
        raise UserError(what, file=path, fix=fix)


def record_places(path: Path) -> list[Path]:
    """Return the directories of the records under a results directory, a suite's or a trial's."""
    require_directory(path)
    if (path / RECORD_FILE).is_file():
        return [path]
    if records := records_under(path):
        return records
    suites = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    return [place for suite in suites for place in records_under(suite)]


Keep = Literal["first", "latest"]
CONTENT = (RECORD_FILE, EPOCHS_FILE)  # what makes two trials the same; logs may be lost on the way


@dataclass(frozen=True)
class Merged:
    """How many trials were copied, were there already, and gave way to another of their id."""

    copied: int
    same: int
    dropped: int


def merge_results(out: Path, sources: Sequence[Path], keep: Keep | None = None) -> Merged:
    """Copy the trials below `sources` (results directories, suites' or trials') into the results at `out`.

    A trial that is twice with equal content is there once. Of two that differ `keep` says which is taken: the
    first, where `out` comes before all sources, or the one that was started last. Nothing is copied before
    everything was read. `suite.json` is the first there is, `reference.jsonl` has the lines of all. UserError for a
    trial twice that differs and no `keep`, a damaged record, or where a run is writing to `out`.
    """
    places = [place for source in sources for place in record_places(source)]
    found = {place: _read_to_merge(place) for place in dict.fromkeys(places)}
    if not found:
        raise UserError("holds no finished trial", file=sources[0])
    stores = {record.suite: ResultStore(out, record.suite) for record in found.values()}
    there: dict[Path, Record] = {}
    chosen: dict[tuple[str, str], Path] = {}
    for suite, store in stores.items():
        for place in records_under(store.directory):
            there[place], chosen[suite, place.name] = read_at(place), place
    same = dropped = 0
    for new in places:
        record = found[new]
        if (old := chosen.get((record.suite, record.trial))) is None:
            chosen[record.suite, record.trial] = new
            continue
        _, different, missing = filecmp.cmpfiles(old, new, CONTENT, shallow=False)
        if not different and not missing:
            same += 1
            continue
        if keep is None:
            what = f"trial {record.trial} ({record.label}) is in {old} too, and differs"
            raise UserError(what, file=new, fix="--keep first, or --keep latest: the one started last")
        dropped += 1
        if keep == "latest" and record.started > (there | found)[old].started:
            chosen[record.suite, record.trial] = new
    copied = [place for place in chosen.values() if place not in there]
    for suite, store in stores.items():
        homes = list(dict.fromkeys(place.parent for place, record in found.items() if record.suite == suite))
        _add(store, {place: found[place].trial for place in copied if found[place].suite == suite}, homes)
    return Merged(len(copied), same, dropped)


def _read_to_merge(place: Path) -> Record:
    """Read a record that becomes a directory of its trial's name."""
    for name in CONTENT:
        if (place / name).is_symlink():
            raise UserError("is a link, which is not copied", file=place / name, fix="put the file itself there")
    record = read_at(place)
    if record.trial != place.name.partition(".")[0]:
        what = f"is the record of trial '{record.trial}'"
        raise UserError(what, file=place, fix="a trial's directory has its name: remove it")
    return record


def _add(store: ResultStore, trials: Mapping[Path, str], homes: Sequence[Path]) -> None:
    """Copy trials into a suite's results, each under its lease, and what lies next to them in `homes`."""
    with store.runner():
        leases = store.leases()
        store.clean(leases)
        latest = leases.latest()
        for place, trial in trials.items():
            lease = leases.take(trial, latest.get(trial))
            if lease is None:
                holder = leases.holder(latest.get(trial))
                what = f"trial {trial} is being run ({'another runner' if holder is None else named(holder)})"
                raise UserError(what, file=store.directory, fix="wait for it or stop it; see `harness status`")
            done = False
            try:
                store.adopt(place, trial)
                done = True
            finally:
                leases.end(lease, done=done)
        target = store.directory / SUITE_FILE
        for source in (home / SUITE_FILE for home in homes):
            if source.is_file() and not source.is_symlink() and not target.exists():
                write_whole(target, source.read_text(encoding="utf-8"))
        note(store.directory, [each for home in homes for each in measurements(home)])
