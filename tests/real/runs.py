"""Suites on real graphs, run as `harness run` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from launch.tiny import Silent

from harness import load_results
from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.select import matches
from harness.suite.suite_file import load_suite

SUITES = Path(__file__).resolve().parents[2] / "suites"


@dataclass(frozen=True)
class Runs:
    """Runs suites with the data of `data_dir`, results and prepared data under folders of their own."""

    data_dir: Path
    cache: Path
    results: Path

    def run(self, file: Path, only: str | None = None, settings: Sequence[str] = ()) -> pd.DataFrame:
        """Run a suite's trials; returns a row for each, indexed by data set, method and parts, all ok."""
        suite = load_suite(file, settings)
        trials = expand(suite, device="cpu", data_dir=self.data_dir)
        trials = [trial for trial in trials if only is None or matches(trial, only)]
        store = ResultStore(self.results, suite.name)
        options = RunOptions(data_dir=self.data_dir)
        code = run_suite(suite, trials, store, options, Silent())
        results = load_results(store.directory)
        assert code == 0, results[["label", "status", "reason"]].to_string()
        assert len(results) == len(trials)
        assert set(results["status"]) == {"ok"}, results[["label", "status", "reason"]].to_string()
        return results.set_index(["dataset", "method", "parts"]).sort_index()

    def run_text(self, text: str, folder: Path) -> pd.DataFrame:
        """Run a suite that is written here."""
        file = folder / "suite.yaml"
        file.write_text(text)
        return self.run(file)
