"""Running suites from Python, in a script or a notebook."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd


def run(
    suite: str | Path | Mapping[str, Any],
    *,
    results: str | Path = "results",
    only: str | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    plugins: Sequence[str] = (),
    device: str | None = None,
    data_dir: str | Path | None = None,
    retry: Sequence[str] = (),
    fresh: bool = False,
) -> pd.DataFrame:
    """Run a suite, or go on with it, and return its results: a row a trial, in their order, as `load_results` has it.

    The same as `harness run`: every trial is recorded under `results`, those that are there are kept, and Ctrl-C (in a
    notebook: interrupt) loses none. A notebook shows a live table, a terminal two lines, anything else plain lines.
    Trials run one after another.

    Args:
        suite: its file, the name of a shipped one, or what a file would hold as a mapping.
        results: where records are kept.
        only: the trials to run, as for `--only`, e.g. "method=full|bns-gcn,parts=2".
        overrides: keys of the suite with other values: {"train.epochs": 10}, or as for `--set`.
        plugins: files (or modules) with methods, models and the like that are not installed.
        device: "cpu", "cuda" or "auto" in place of the suite's.
        data_dir: where graphs of your own are, in place of $HARNESS_DATA.
        retry: statuses whose trials run again, e.g. ["error"].
        fresh: run all selected trials again.

    Raises:
        UserError: a mistake in the suite or in what is asked of it; no trial has run.
        KeyboardInterrupt: it was interrupted; the same call goes on.
    """
    from harness.cli.command_options import SuiteOptions
    from harness.cli.progress import view
    from harness.cli.run import check_cache, check_writable
    from harness.launch.runner import run_suite
    from harness.launch.runner_process import INTERRUPTED
    from harness.results.frames import load_results
    from harness.results.record_store import ResultStore
    from harness.suite.suite_file import suite_file

    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    before = os.environ.get("HARNESS_DATA")
    directory = before or None if data_dir is None else data_dir
    try:
        asked = SuiteOptions(
            suite=suite if isinstance(suite, Mapping) else suite_file(Path(suite)) or Path(suite),  # type: ignore[arg-type]
            results=Path(results),
            device=device,
            only=only,
            set_=list(overrides),
            plugin=list(plugins),
            trust_plugins=True,
            retry=",".join(retry),
            fresh=fresh,
            data_dir=None if directory is None else Path(directory),
        )
        loaded, trials = asked.select()
        store = ResultStore(asked.results, loaded.name)
        check_writable(store.directory)
        check_cache()
        with view() as progress:
            code = run_suite(loaded, trials, store, asked.run_options(), progress)
    finally:
        if before is not None:
            os.environ["HARNESS_DATA"] = before
        else:
            os.environ.pop("HARNESS_DATA", None)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    found = load_results(store.directory)
    order = {trial.id: number for number, trial in enumerate(trials)}
    own = found[found["trial"].isin(order.keys())]
    return own.sort_values("trial", key=lambda ids: ids.map(order), ignore_index=True)
