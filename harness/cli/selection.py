"""The trials that a command's suite and options select."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from harness.cli.options import DataDir, Device, Only, Plugin, Set, Shard, device_of, shard_of
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.suite.schema import Suite, TrialConfig


@dataclass(frozen=True)
class Kept:
    """Results that a suite may have; `build`: data are prepared where that tells whether they are of today's data."""

    results: Path
    build: bool = True


def select(
    file: Path | Mapping[str, Any],
    overrides: Set,
    device: Device,
    only: Only,
    data_dir: DataDir,
    plugins: Plugin,
    shard: Shard = None,
    kept: Kept | None = None,
    *,
    trusted: bool,
) -> tuple[Suite, list[TrialConfig]]:
    """Load a suite and return it with the trials that the options select; at least one.

    Those that have records of other data among the results that are `kept` are other trials. `trusted`: the suite's
    own plugins are imported.
    """
    from harness.suite.expand import expand, older_names
    from harness.suite.names import read_suite
    from harness.suite.select import chosen

    suite = read_suite(file, overrides or [], plugins or [], trusted=trusted)
    idle: list[str] = []
    every = expand(suite, device=device_of(device), data_dir=data_dir, tell=idle.append)
    options = {key for trial in every for key in trial.method.options}
    first, step = (0, 1) if shard is None else shard_of(shard)

    def asked(trials: Sequence[TrialConfig]) -> list[TrialConfig]:
        """Return those that are asked for, by the ids of today's data or, alike on all nodes, of any."""
        if only is None:
            return list(trials)
        alike = [own for trial in trials for own in (trial, trial.of_any_data)]
        wanted = {own.of_any_data.id for own in chosen(alike, only, options)}
        return [trial for trial in trials if trial.of_any_data.id in wanted]

    if kept is not None:
        from harness.launch.inputs import on_todays_data
        from harness.results.record_store import ResultStore

        store = ResultStore(kept.results, suite.name)
        wanted = asked(every)[first::step]
        every, said = on_todays_data(every, store, data_dir, build=kept.build, wanted=wanted, report=typer.echo)
        for line in said:
            typer.echo(f"note: {line}")
    for line in [*older_names(suite), *idle]:
        typer.echo(f"note: {line}", err=True)
    trials = asked(every)
    if not trials:
        what = f"none of the {len(every)} trials matches '{only}'" if only else "the suite has no trials"
        named = file if isinstance(file, Path) else None
        fix = f"see `harness plan {named}`" if named else None
        raise UserError(what, file=named, key="--only" if only else None, fix=fix)
    return suite, trials[first::step]
