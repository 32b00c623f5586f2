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
from harness.results.censored import CONVERGENCE, Curve, equal_settings, held_to_references
from harness.results.projection import network_label
from harness.results.record import EDITED, EPOCHS_FILE, FAMILIES, RECORD_FILE, REPEAT, Record, whole_config
from harness.results.record_store import EPOCH_COLUMNS, kept_suites, read_epochs, read_records
from harness.results.tuned import Tuning, kept_tunings

RecordKey = tuple[str, str]  # a trial's suite and id
EXTERNAL = "external"  # family of what a command trained


def load_results(path: Path | str) -> pd.DataFrame:
    """Return one row a trial, as they started, of a results directory, a suite's directory or one trial's.

    Times in seconds, `bytes_<purpose>` in bytes an epoch over all ranks, `peak_memory_bytes` of the largest
    rank, scores as fractions, `stat_<name>`: a method's own metrics of an epoch, see `results.reduce` (no
    such columns from records that are older than them). A metric that a trial lacks is NaN (None for text).
    A copy of a trial's directory is no trial of its own: of several the one that started last counts, once.
    No records: no rows, all columns. UserError if the directory does not exist or a record is damaged.
    """
    return _results(_latest(read_records(Path(path))))


def load_epochs(path: Path | str) -> pd.DataFrame:
    """Return one row an epoch and rank of every trial under `path` (as for `load_results`).

    Columns `suite`, `trial`, the trial's `dataset`, `label`, `method`, `parts`, `network` and `seed`, `epoch` (from 0),
    `rank`, `epoch_time_s`, `time_<phase>_s`, `bytes_<purpose>` (sent by this rank in this epoch), `loss`, `lr`, scores
    (NaN where not evaluated), and the method's own metrics as `stat_<name>`.
    """
    found = _latest(read_records(Path(path)))
    epochs, of_trial = _epochs(found), ["dataset", "label", "method", "parts", "network", "seed"]
    rows = pd.DataFrame([row_of(record) for record in found.values()], columns=["suite", "trial", *of_trial])
    return epochs[["suite", "trial"]].merge(rows, how="left").join(epochs.drop(columns=["suite", "trial"]))


def edited(places: Iterable[Path]) -> list[str]:
    """Return a line for each trial under results directories whose files are not what was written."""
    found = (record for place in places for record in _latest(read_records(place)).values())
    flags = ((record, flag.partition(": ")) for record in found for flag in record.flags)
    return [f"{record.label} ({record.trial}): {what}" for record, (key, _, what) in flags if key == EDITED]


def too_soon(place: Path) -> list[tuple[str, str]]:
    """Return label and flag of each trial under a directory that learns sooner than exact training."""
    found = _latest(read_records(place))
    flags = _convergence(found)
    return [(each.label, flags[key]) for each in found.values() if (key := (each.suite, each.trial)) in flags]


def _convergence(found: Mapping[Path, Record]) -> dict[RecordKey, str]:
    """Return the flag of each trial whose method learns sooner than exact training; see `held_to_references`."""
    places = {(record.suite, record.trial): place for place, record in found.items()}

    @functools.cache
    def curve_at(place: Path) -> Curve:
        epochs = read_epochs(place / EPOCHS_FILE)
        scored = epochs.dropna(subset=["val_score"]).drop_duplicates("epoch") if "val_score" in epochs else epochs[:0]
        return {int(epoch) + 1: float(score) for epoch, score in zip(scored["epoch"], scored["val_score"], strict=True)}

    held = held_to_references(
        equal_settings(found.values()), lambda record: curve_at(places[record.suite, record.trial])
    )
    return {
        (record.suite, record.trial): f"{CONVERGENCE}: {soon}"
        for records, soon in held
        if soon.sure
        for record in records
    }


def _latest(found: Mapping[Path, Record]) -> dict[Path, Record]:
    """Return one record a trial, by directory: of copies, and reruns, the one that started last."""
    last: dict[RecordKey, tuple[Path, Record]] = {}
    for place, record in found.items():
        key = record.suite, record.trial
        if key not in last or record.started > last[key][1].started:
            last[key] = place, record
    return dict(last.values())


def _results(found: Mapping[Path, Record]) -> pd.DataFrame:
    ordered = sorted(found.items(), key=lambda each: (each[1].suite, each[1].started, each[1].trial))
    rows, sooner = [row_of(record) for _, record in ordered], _convergence(found)
    for row in rows:
        if (flag := sooner.get((row["suite"], row["trial"]))) is not None:
            row["flags"] = "; ".join(filter(None, (row["flags"], flag)))
    columns = dict.fromkeys([*METRICS, *(key for row in rows for key in row)])
    numbers = [column for column in columns if column not in METRICS or METRICS[column].value == "number"]
    for (place, _), row in zip(ordered, rows, strict=True):
        for column in numbers:
            if not isinstance(value := row.get(column), int | float | None):
                what = f"damaged record: bad value {reprlib.repr(value)}: must be a number"
                raise UserError(what, file=place / RECORD_FILE, key=column, fix=REPEAT)
    frame = pd.DataFrame(rows, columns=[*columns])
    return pd.DataFrame({c: pd.to_numeric(own) if c in numbers else own for c, own in frame.items()})


def _epochs(found: Mapping[Path, Record]) -> pd.DataFrame:
    frames = []
    for place, record in found.items():
        frame = read_epochs(place / EPOCHS_FILE)
        frame.insert(0, "suite", record.suite)
        frame.insert(1, "trial", record.trial)
        if len(frame):
            frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(EPOCH_COLUMNS))


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
    numbers = {
        key: value for key, value in record.result.items() if key in METRICS or key in own or key.startswith(FAMILIES)
    }
    stats = record.result.get("stats") or {}
    row |= numbers | {f"{STAT}{name}": value for name, value in stats.items()}
    formulas = (metric for metric in (*METRICS.values(), *own.values()) if metric.formula)
    return row | {metric.name: Formula.parse(metric.formula).value(row) for metric in formulas}


def declared_metrics(record: Record) -> dict[str, Metric]:
    """Return the metrics that a record's method, and installed packages, add to the tool's own, by name."""
    own = from_declared(record.declared.get("metrics", ()))
    return {metric.name: metric for metric in (*installed(), *own)}


def trained_s(epochs: pd.DataFrame) -> pd.Series[float]:
    """Return the seconds of each epoch's slowest rank, of the first with what was computed before for all of them."""
    rows = epochs.groupby("epoch", sort=True)
    before = rows["precompute_s"].max().fillna(0.0) if "precompute_s" in epochs else 0.0  # not in older records
    return rows["epoch_time_s"].max() + before


def _get(config: dict[str, Any], section: str, key: str) -> Any:
    """Return `config[section][key]`, None where it is not there."""
    inner = config.get(section)
    return inner.get(key) if isinstance(inner, dict) else None


@dataclass(frozen=True)
class ResultInputs:
    """Everything a report shows.

    `results`: one row a trial, the means of its repeats; `runs`: one row a repeat, with the `trial` of its row in
    `results`; `epochs`: one row an epoch and rank, as of `load_epochs`; `records`: the record of each (suite, trial),
    possibly fewer; `directories`: where they were read; `repeated`: how many trials several of them hold, started at
    different times (the last one is shown); `earlier`: how many trials are left out as those of an earlier search of
    settings; `stored`: trials that are there to compare with only; `whole`: with the trials that commands
    trained, which are compared with nothing (None: there are none).
    """

    results: pd.DataFrame
    runs: pd.DataFrame
    epochs: pd.DataFrame
    records: Mapping[RecordKey, Record] = field(default_factory=dict)
    directories: tuple[Path, ...] = ()
    repeated: int = 0
    earlier: int = 0
    stored: frozenset[RecordKey] = frozenset()
    whole: ResultInputs | None = None

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
    def looks(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The seeds at which methods of a suite were compared, see `KeptSuite.looks`; of suites that have several."""
        return {name: own for name, suite in kept_suites(self.directories).items() if (own := suite.looks)}

    @functools.cached_property
    def _data(self) -> tuple[dict[RecordKey, str], dict[RecordKey, str]]:
        """Fingerprints by trial of the data sets, and of the partitions, that have several contents under one name."""
        graphs: dict[str, dict[RecordKey, str]] = {}
        parts: dict[str, dict[RecordKey, str]] = {}
        for key, record in self.records.items():
            graph, of = record.dataset.get("fingerprint"), json.dumps([key[0], record.config.get("dataset")])
            graphs.setdefault(of, {})[key] = graph or ""
            inductive = _get(record.config, "train", "inductive")
            split = json.dumps([of, graph, record.config.get("partition"), inductive])
            parts.setdefault(split, {})[key] = (graph and record.partition_fingerprint) or ""

        def of_several(kinds: Mapping[str, Mapping[RecordKey, str]]) -> dict[RecordKey, str]:
            several = [found for found in kinds.values() if len({*found.values()} - {""}) > 1]  # "": not known
            return {key: own for found in several for key, own in found.items()}

        return of_several(graphs), of_several(parts)

    def data(self, row: Mapping[Any, Any]) -> tuple[str, str]:
        """Return the fingerprints of a trial's data set and partition; "" where their names have one content only."""
        key = str(row["suite"]), str(row["trial"])
        return self._data[0].get(key, ""), self._data[1].get(key, "")

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
    read: dict[Path, Record] = {}
    # Each trial's runs by when they started: whether one is other than a baseline's, and its directory.
    every: dict[RecordKey, dict[str, tuple[bool, Path]]] = {}
    for place in sorted(places, key=lambda place: place.resolve() not in stored):
        for directory, record in _latest(read_records(place, required=True)).items():
            read[directory] = record
            runs = every.setdefault((record.suite, record.trial), {})
            runs.setdefault(record.started, (place.resolve() not in stored, directory))
    last = {key: max((own, at, directory) for at, (own, directory) in runs.items()) for key, runs in every.items()}
    earlier = _of_earlier_searches(last, places)
    shown = {directory for key, (*_, directory) in last.items() if key not in earlier}
    chosen = {directory: record for directory, record in read.items() if directory in shown}
    records = {(record.suite, record.trial): record for record in chosen.values()}
    whole = ResultInputs(
        *averaged(_results(chosen), records),
        _epochs(chosen),
        records,
        places,
        repeated=sum(len(runs) > 1 for runs in every.values()),
        earlier=len(earlier),
        stored=frozenset(key for key, (own, *_) in last.items() if not own),
    )
    own = [key for key, record in records.items() if record.declared.get("family") != EXTERNAL]
    return whole if len(own) == len(records) else replace(whole.only(own), whole=whole)


def _of_earlier_searches(keys: Collection[RecordKey], places: Sequence[Path]) -> set[RecordKey]:
    """Return the trials of tuned suites that have settings of an earlier search: the present one chose others."""
    if not (tuned := kept_tunings(places)):
        return set()
    present = {name: {trial.id for trial in own.trials} for name, own in kept_suites(places).items() if name in tuned}
    return {key for key in keys if (own := present.get(key[0])) and key[1] not in own}


def averaged(results: pd.DataFrame, records: Mapping[tuple[str, str], Record]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows of `load_results` with one a trial for its repeats that ended well; and all runs.

    Numbers of a row are means over these repeats, all else is the first one's, whose position it has. Every other run
    keeps a row. Where there are repeats a column `runs` counts them. The runs have the `trial` of their trial's row,
    the first where all failed.
    """
    if not results["repeat"].any():
        return results, results
    # Repeats share configuration and content of the data. A record without the latter (it ended before the data were
    # read, or is old) is taken to be of the last that has it.
    runs_of = [records[pair] for pair in zip(results["suite"], results["trial"], strict=True)]
    own = [json.dumps(whole_config(r.config) | {"repeat": None, "data": None}, sort_keys=True) for r in runs_of]
    data = {config: record.data for config, record in zip(own, runs_of, strict=True) if record.data}
    shared = [f"{config} {record.data or data.get(config)}" for config, record in zip(own, runs_of, strict=True)]
    key = results["suite"] + shared
    known = results.assign(cell=pd.factorize(key)[0], place=range(len(results)))
    known["place"] = known.groupby("cell")["place"].transform("min")
    known = known.sort_values(["place", "repeat"], kind="stable")
    ok = known["status"] == "ok"
    well = known[ok].groupby("cell", sort=False)
    means = known[ok].drop_duplicates("cell").set_index("cell")
    numbers = [n for n in map(str, means.select_dtypes("number")) if n not in ("seed", "parts", "repeat", "place")]
    means = means.drop(columns=numbers).join(well[numbers].mean())[[*means]]  # at once: a column at a time is slow
    means["flags"] = well["flags"].agg(lambda flags: "; ".join(dict.fromkeys(filter(None, flags))))
    rows = pd.concat([means.assign(runs=well.size()), known[~ok].assign(runs=1)])
    rows = rows.sort_values(["place", "repeat"], kind="stable").drop(columns=["cell", "place"]).reset_index(drop=True)
    first = known.assign(failed=~ok).sort_values("failed", kind="stable").drop_duplicates("cell")
    runs = known.assign(trial=known["cell"].map(first.set_index("cell")["trial"]))
    return rows, runs.drop(columns=["cell", "place"]).reset_index(drop=True)
