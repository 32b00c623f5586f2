"""Results as pandas frames, with the records behind them."""

from __future__ import annotations

import functools
import json
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.metrics import METRICS, STAT, Formula, Metric, from_declared, installed
from harness.results.environment import at_middle, measurements
from harness.results.projection import network_label
from harness.results.record import EDITED, Json, Record, whole_config
from harness.results.record_store import EPOCH_COLUMNS, read_at, read_epochs, record_places
from harness.results.tuned import Tuning, kept_tunings


def load_results(path: Path | str) -> pd.DataFrame:
    """Return one row a trial, as they started, of a results directory, a suite's directory or one trial's.

    Times in seconds, `bytes_<purpose>` in bytes an epoch over all ranks, `peak_memory_bytes` of the largest
    rank, scores as fractions, `stat_<name>`: a method's own metrics of an epoch, see `results.reduce` (no
    such columns from records that are older than them). A metric that a trial lacks is NaN (None for text).
    A copy of a trial's directory is no trial of its own: of several the one that started last counts, once.
    No records: no rows, all columns. UserError if the directory does not exist or a record is damaged.
    """
    return _results(_read_once(Path(path)))


def _results(once: Mapping[Path, Record]) -> pd.DataFrame:
    found = sorted(
        zip(_at_middle(once), once, strict=True), key=lambda each: (each[0].suite, each[0].started, each[0].trial)
    )
    rows = [row_of(record) for record, _ in found]
    extra = dict.fromkeys(key for row in rows for key in row if key not in METRICS)
    frame = pd.DataFrame(rows, columns=[*METRICS, *extra])
    numbers = [column for column in frame.columns if column not in METRICS or METRICS[column].value == "number"]
    for row, (_, place) in zip(rows, found, strict=True):
        _check_numbers(row, numbers, place / "record.json")
    return pd.DataFrame({c: pd.to_numeric(own) if c in numbers else own for c, own in frame.items()})


def _check_numbers(row: Mapping[str, Any], numbers: Sequence[str], file: Path) -> None:
    """Raise a UserError if a metric of a record is something else than a number."""
    for column in numbers:
        if not isinstance(value := row.get(column), int | float | None):
            what = f"damaged record: bad value {reprlib.repr(value)}: must be a number"
            raise UserError(what, file=file, key=column, fix="remove the trial's directory; the next run repeats it")


def read_all(places: Sequence[Path]) -> list[Record]:
    """Read the records in directories, each with the reference workload's time nearest to its trial."""
    return _at_middle({place: read_at(place) for place in places})


def _at_middle(found: Mapping[Path, Record]) -> list[Record]:
    known = {suite: measurements(suite) for suite in {place.parent for place in found}}
    return [at_middle(record, known[place.parent]) for place, record in found.items()]


def _read_once(path: Path) -> dict[Path, Record]:
    """Read the records under `path` by directory, one a trial: of copies, and reruns, the one that started last."""
    last: dict[RecordKey, tuple[Path, Record]] = {}
    for place in record_places(path):
        record = read_at(place)
        key = record.suite, record.trial
        if key not in last or record.started > last[key][1].started:
            last[key] = place, record
    return dict(last.values())


def edited(places: Iterable[Path]) -> list[str]:
    """Return a line for each trial under results directories whose files are not what was written."""
    found = (record for place in places for record in _read_once(place).values())
    said = ((record, flag.partition(": ")) for record in found for flag in record.flags)
    return [f"{record.label} ({record.trial}): {what}" for record, (key, _, what) in said if key == EDITED]


def load_epochs(path: Path | str) -> pd.DataFrame:
    """Return one row an epoch and rank of every trial under `path` (as for `load_results`).

    Columns `suite`, `trial`, `epoch` (from 0), `rank`, `epoch_time_s`, `time_<phase>_s`, `bytes_<purpose>`
    (sent by this rank in this epoch), `loss`, `lr`, scores (NaN where not evaluated), and the method's own
    metrics as `stat_<name>`.
    """
    return _epochs(_read_once(Path(path)))


def _epochs(once: Mapping[Path, Record]) -> pd.DataFrame:
    frames = []
    for place, record in once.items():
        frame = read_epochs(place / "epochs.parquet")
        frame.insert(0, "suite", record.suite)
        frame.insert(1, "trial", record.trial)
        if len(frame):
            frames.append(frame)
    if not frames:
        return pd.DataFrame(columns=list(EPOCH_COLUMNS))
    return pd.concat(frames, ignore_index=True)


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as a row of `load_results`."""
    config = record.config
    row = {
        "suite": record.suite,
        "trial": record.trial,
        "label": record.label,
        "dataset": _get(config, "dataset", "name"),
        "dataset_note": record.dataset.get("note"),
        "origin": record.dataset.get("origin"),
        "model": _get(config, "model", "name"),
        "method": _get(config, "method", "name"),
        "options": _get(config, "method", "options") or {},
        "parts": _get(config, "partition", "parts"),
        "partitioner": _get(config, "partition", "method"),
        "network": network_label(record),
        "seed": config.get("seed"),
        "repeat": config.get("repeat", 0),
        "device": config.get("device"),
        "timing": config.get("timing", "plain"),
        "status": record.status,
        "reason": record.reason,
        "flags": "; ".join(record.flags),
        "wall_s": record.wall_s,
        "started": record.started,
        "reference_s": record.environment.get("reference_s"),
    }
    own = declared_metrics(record)
    families = "time_", "bytes_"  # of phases and purposes of a plugin's, too
    numbers = {
        key: value for key, value in record.result.items() if key in METRICS or key in own or key.startswith(families)
    }
    stats = record.result.get("stats") or {}
    row |= numbers | {f"{STAT}{name}": value for name, value in stats.items()}
    formulas = (metric for metric in (*METRICS.values(), *own.values()) if metric.formula)
    return row | {metric.name: Formula.parse(metric.formula).value(row) for metric in formulas}


# All that `Method.declared` has, so that methods, and torch with them, are loaded for older records only.
DECLARED = {"family", "defaults", "presets", "numbers", "plain", "baseline", "colour", "metrics"}


def declared_metrics(record: Record) -> dict[str, Metric]:
    """Return the metrics that a record's method, and installed packages, add to the tool's own, by name.

    What the record says of itself; of records that are older, what the method says that is installed.
    """
    own = from_declared(declared_by(record).get("metrics", ()))
    return {metric.name: metric for metric in (*installed(), *own)}


def declared_by(record: Record) -> Json:
    """Return what a record's method says of itself, see `Method.declared`.

    What the record keeps of it; of records that are older, what the method says that is installed.
    """
    if record.declared.keys() >= DECLARED:
        return record.declared
    return declared_of(_get(record.config, "method", "name")) | record.declared


def is_baseline(declared: Json, options: Mapping[str, Any], family: str) -> bool:
    """Return whether methods of a family are compared with one that declares this, at these options."""
    said = declared.get("baseline")
    same = said is not None and all(options.get(name, value) == value for name, value in said.items())
    return same and declared.get("family") == family


@functools.cache
def declared_of(method: str | None) -> Json:
    """Return what a method says of itself, if it is installed; else nothing."""
    from harness.runtime.method import METHODS

    found = METHODS.loaded(method) if method else None
    return found.declared() if found else {}


def _get(config: dict[str, Any], section: str, key: str) -> Any:
    """Return `config[section][key]`, None where it is not there."""
    inner = config.get(section)
    return inner.get(key) if isinstance(inner, dict) else None


def _where_several(kinds: Mapping[str, Mapping[RecordKey, str]]) -> dict[RecordKey, str]:
    """Return the fingerprints of those kinds that have more than one, not counting unknown ones ("")."""
    several = [found for found in kinds.values() if len(set(found.values()) - {""}) > 1]
    return {key: own for found in several for key, own in found.items()}


RecordKey = tuple[str, str]
_TRIAL = ["suite", "trial"]  # what a trial is known by


@dataclass(frozen=True)
class ResultInputs:
    """Everything a report shows.

    `results`: one row a trial, the means of its repeats; `runs`: one row a repeat, with the `trial` of its row in
    `results`; `epochs`: one row an epoch and rank (columns as in
    `harness.results.frames`); `records`: the record of each (suite, trial), possibly fewer; `directories`: where they
    were read; `repeated`: how many trials were in several of them, each with other metrics (the one that started last
    is shown); `stored`: those that are there to compare with only.
    """

    results: pd.DataFrame
    runs: pd.DataFrame
    epochs: pd.DataFrame
    records: Mapping[RecordKey, Record] = field(default_factory=dict)
    directories: tuple[Path, ...] = ()
    repeated: int = 0
    stored: frozenset[RecordKey] = frozenset()

    def only(self, keys: Collection[RecordKey]) -> ResultInputs:
        """Return the same of some of the trials."""

        def of(frame: pd.DataFrame) -> pd.DataFrame:
            return frame[[key in keys for key in zip(frame["suite"], frame["trial"], strict=True)]]

        return replace(
            self,
            results=of(self.results).reset_index(drop=True),
            runs=of(self.runs).reset_index(drop=True),
            epochs=of(self.epochs).reset_index(drop=True),
            records={key: record for key, record in self.records.items() if key in keys},
        )

    def record(self, row: Mapping[Any, Any]) -> Record | None:
        """Return the record of a row of `results`, None if it is not there."""
        return self.records.get((str(row["suite"]), str(row["trial"])))

    @property
    def declared(self) -> list[Metric]:
        """The metrics that the records' methods declare."""
        found = {name: each for record in self.records.values() for name, each in declared_metrics(record).items()}
        return list(found.values())

    @functools.cached_property
    def _data(self) -> tuple[dict[RecordKey, str], dict[RecordKey, str]]:
        """What tells data apart, by trial, of data sets and of partitions with several contents under one name."""
        graphs: dict[str, dict[RecordKey, str]] = {}
        parts: dict[str, dict[RecordKey, str]] = {}
        for key, record in self.records.items():
            graph, of = record.dataset.get("fingerprint"), json.dumps([key[0], record.config.get("dataset")])
            graphs.setdefault(of, {})[key] = graph or ""
            inductive = _get(record.config, "train", "inductive")
            split = json.dumps([of, graph, record.config.get("partition"), inductive])
            parts.setdefault(split, {})[key] = (graph and record.partition_fingerprint) or ""
        return _where_several(graphs), _where_several(parts)

    def data(self, row: Mapping[Any, Any]) -> tuple[str, str]:
        """Return what tells a trial's data set and partition from others of their names; "" of one content only."""
        graphs, parts = self._data
        key = str(row["suite"]), str(row["trial"])
        return graphs.get(key, ""), parts.get(key, "")

    @functools.cached_property
    def tunings(self) -> dict[str, Tuning]:
        """The searches by which settings were chosen, by suite."""
        return kept_tunings(self.directories)

    def config(self, row: Mapping[Any, Any]) -> Mapping[str, Any]:
        """Return the resolved configuration of a row of `results`, empty without its record."""
        record = self.record(row)
        return record.config if record else {}


def load_inputs(directories: Path | Sequence[Path], baselines: Sequence[Path] = ()) -> ResultInputs:
    """Read the trials under results roots, suites' directories or trials' own.

    A trial (its suite's name and its id) that is in several is taken from where it started last, and from one of
    `baselines`, whose trials are there to compare with, only if it is nowhere else. UserError if a directory is
    missing, holds no trial, or a record is damaged.
    """
    listed = [directories] if isinstance(directories, Path) else list(directories)
    places = tuple({place.resolve(): place for place in (*baselines, *listed)}.values())
    stored = {place.resolve() for place in baselines} - {place.resolve() for place in listed}
    own = [_load_one(place) for place in places]
    if len(own) == 1:
        return _averaged(own[0])
    is_own = [place.resolve() not in stored for place in places]
    every = pd.concat([each.results.assign(place=i, own=is_own[i]) for i, each in enumerate(own)], ignore_index=True)
    every = every.sort_values(["suite", "own", "started", "trial"], kind="stable")
    runs = every.drop_duplicates([*_TRIAL, "started"])
    last = runs.drop_duplicates(_TRIAL, keep="last")
    from_place = dict(zip(zip(last["suite"], last["trial"], strict=True), last["place"], strict=True))
    epochs = [
        each.epochs[[from_place[key] == i for key in zip(*(each.epochs[c] for c in _TRIAL), strict=True)]]
        for i, each in enumerate(own)
    ]
    last = last.sort_values(["suite", "started", "trial"], kind="stable")
    shown = last.drop(columns=["place", "own"]).reset_index(drop=True)
    return _averaged(
        ResultInputs(
            shown,
            shown,
            pd.concat(epochs, ignore_index=True),
            {key: own[i].records[key] for key, i in from_place.items() if key in own[i].records},
            places,
            len(runs[runs.duplicated(_TRIAL)].drop_duplicates(_TRIAL)),
            frozenset(key for key, i in from_place.items() if not is_own[i]),
        )
    )


def _averaged(inputs: ResultInputs) -> ResultInputs:
    results, runs = averaged(inputs.results, inputs.records)
    return replace(inputs, results=results, runs=runs)


def _load_one(place: Path) -> ResultInputs:
    if not place.is_dir():
        raise UserError("no such directory of results", file=place, fix="run `harness run SUITE` first")
    once = _read_once(place)
    if not once:
        raise UserError("holds no finished trial", file=place, fix="run `harness run SUITE` first")
    results = _results(once)
    records = {(record.suite, record.trial): record for record in once.values()}
    return ResultInputs(results, results, _epochs(once), records, (place,))


def averaged(results: pd.DataFrame, records: Mapping[tuple[str, str], Record]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows of `load_results` with one a trial for its repeats that ended well; and all runs.

    Numbers of a row are means over these repeats, all else is the first one's; it stands in the place of the first
    repeat. Every other run keeps a row. `runs`: how many a row has, a column that there is if there are repeats. The
    runs have the `trial` of their trial's row, the first where all failed.
    """
    if not results["repeat"].any():
        return results, results
    pairs = zip(results["suite"], results["trial"], strict=True)
    key = results["suite"] + _without_repeat([records[pair] for pair in pairs])
    known = results.assign(cell=pd.factorize(key)[0], place=range(len(results)))
    known["place"] = known.groupby("cell")["place"].transform("min")
    known = known.sort_values(["place", "repeat"], kind="stable")
    ok = known["status"] == "ok"
    well = known[ok].groupby("cell", sort=False)
    means = known[ok].drop_duplicates("cell").set_index("cell")
    numbers = [n for n in map(str, means.select_dtypes("number")) if n not in ("seed", "parts", "repeat", "place")]
    means[numbers] = well[numbers].mean()
    means["flags"] = well["flags"].agg(lambda flags: "; ".join(dict.fromkeys(filter(None, flags))))
    rows = pd.concat([means.assign(runs=well.size()), known[~ok].assign(runs=1)])
    rows = rows.sort_values(["place", "repeat"], kind="stable").drop(columns=["cell", "place"]).reset_index(drop=True)
    first = known.assign(failed=~ok).sort_values("failed", kind="stable").drop_duplicates("cell")
    runs = known.assign(trial=known["cell"].map(first.set_index("cell")["trial"]))
    return rows, runs.drop(columns=["cell", "place"]).reset_index(drop=True)


def _without_repeat(records: Sequence[Record]) -> list[str]:
    """Return what the repeats of a trial share: configuration and content of the data.

    A record that does not say its data (it ended before these were read, or is old) is taken to be of the last that do.
    """
    own = [
        json.dumps(whole_config(record.config) | {"repeat": None, "data": None}, sort_keys=True) for record in records
    ]
    data = {config: record.data for config, record in zip(own, records, strict=True) if record.data}
    return [f"{config} {record.data or data.get(config)}" for config, record in zip(own, records, strict=True)]
