"""The claims of the suites of a results directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from harness.claims.evaluate import Verdict, evaluate
from harness.errors import UserError
from harness.report.trials.inputs import load_inputs
from harness.results.suite_file import KeptSuite, kept, kept_suites


@dataclass(frozen=True)
class Judged:
    """A suite's claims and what its results make of them.

    `file`: the suite file's name, if known; `trials`, `finished`: how many trials the suite has, and how many
    of them have a record; `others`: records under its name that are none of its trials (another version of
    the suite, or overrides).
    """

    suite: str
    file: str | None
    verdicts: tuple[Verdict, ...]
    trials: int
    finished: int
    others: int


def judge(results: pd.DataFrame, epochs: pd.DataFrame, suites: Mapping[str, KeptSuite]) -> list[Judged]:
    """Evaluate the claims of suites on results (frames as of `load_results`, `load_epochs`).

    Suites without claims, and without a record, are left out.
    """
    return [
        _judged(suite, results[results["suite"] == name], epochs[epochs["suite"] == name])
        for name, suite in sorted(suites.items())
        if suite.claims and (results["suite"] == name).any()
    ]


def judge_directories(directories: Sequence[Path], suites: Iterable[KeptSuite] = ()) -> list[Judged]:
    """Evaluate the claims of what was run, each suite as it is kept beside its results.

    Args:
        directories: results directories, suites' directories in them, or trials'.
        suites: suites to hold the results against in place of those kept.

    Raises:
        UserError: a directory is missing or holds no trial, or a record or `suite.json` is damaged.
    """
    inputs = load_inputs(directories)
    given = {suite.name: suite for suite in suites}
    return judge(inputs.results, inputs.epochs, given or kept_suites(inputs.directories))


def suite_of(file: Path, results: Sequence[Path], data_dir: Path | None = None) -> KeptSuite:
    """Return the suite of a file with the trials that it has on the device that the results are of.

    Raises:
        UserError: a mistake in the suite, or no record under its name.
    """
    from harness.suite.expand import expand
    from harness.suite.load import load_suite

    suite = load_suite(file)
    frame = load_inputs(results).results
    devices = frame.loc[frame["suite"] == suite.name, "device"].unique()
    if not len(devices):
        there = ", ".join(sorted(frame["suite"].unique())) or "none"
        raise UserError(f"no results of suite '{suite.name}'", file=file, fix=f"suites there: {there}")
    trials = [trial for device in devices for trial in expand(suite, device=str(device), data_dir=data_dir)]
    return kept(suite, trials)


def _judged(suite: KeptSuite, results: pd.DataFrame, epochs: pd.DataFrame) -> Judged:
    verdicts = evaluate(suite.claims, results, epochs, suite.trials)
    ids = {trial.id for trial in suite.trials}
    known = set(results["trial"])
    finished, others = len(ids & known), len(known - ids)
    return Judged(suite.name, suite.file, tuple(verdicts), len(ids), finished, others)
