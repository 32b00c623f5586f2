"""Repeats: runs of one trial with the same seed. Their times are independent, their scores are the same bits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UserError
from harness.results.record import Record, read_record, whole_config
from harness.suite.schema import TrialConfig

if TYPE_CHECKING:
    import pandas as pd

BITS = ("checksum", "final_loss", "final_val", "final_test", "best_val", "test_at_best_val")
SAME = ("machine", "threads", "packages", "commit", "dirty", "python")  # of the environment: else bits may differ


def averaged(results: pd.DataFrame, records: Mapping[tuple[str, str], Record]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows of `load_results` with one a trial for its repeats that ended well; and all runs.

    Numbers of a row are means over these repeats, all else is the first one's; it stands in the place of the first
    repeat. Every other run keeps a row. `runs`: how many a row has, a column that there is if there are repeats. The
    runs have the `trial` of their trial's row, the first where all failed.
    """
    import pandas as pd

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


def unlike(record: Record, trial: TrialConfig, directory: Path, repeats: int) -> list[str]:
    """Return a flag if the scores or weights of a trial are not the same bits as those of another of its repeats.

    `directory`: the suite's results; `repeats`: how many to look for. Runs on GPUs, on other machines or data, with
    other threads or other code are not compared.
    """
    if record.status != "ok" or trial.device != "cpu":  # on a GPU sums are taken in any order
        return []
    for number in range(repeats):
        path = directory / trial.model_copy(update={"repeat": number}).id / "record.json"
        if number == trial.repeat or not path.is_file():
            continue
        try:
            other = read_record(path)
        except UserError:  # damaged: who reads the results is told
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
