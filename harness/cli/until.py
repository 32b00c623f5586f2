"""Fresh seeds for what may still be the fastest: until that is known (`run --until decided`), or while time is left."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from harness.cli.command_options import option
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.report.views.answer import AnswerView
    from harness.results.record_store import ResultStore
    from harness.suite.schema import Suite, TrialConfig

EQUAL = 0.05  # methods whose times differ by less are as good as each other
UNITS = {"s": 1, "min": 60, "h": 3600}

Until = Annotated[
    Literal["decided"] | None,
    option("--until decided", "Go on with fresh seeds of what may still be the fastest, until that is known."),
]
FreshSeeds = Annotated[str, option("--budget TEXT", "What fresh seeds may take: '30 trials', '45 min', '2 h'.")]


@dataclass(frozen=True)
class Budget:
    """What rounds of fresh seeds may take: so many trials, or seconds of them from start to end."""

    text: str
    trials: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read "30 trials", "2 h", "45 min"; UserError for anything else."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?) *(trials?|s|min|h)", text)
        if found is None or (found[2].startswith("trial") and not found[1].isdecimal()):
            raise UserError(f"'{text}' is no budget", key="--budget", fix="e.g. '30 trials', '45 min' or '2 h'")
        if found[2].startswith("trial"):
            return cls(text, trials=int(found[1]))
        return cls(text, seconds=float(found[1]) * UNITS[found[2]])

    def allows(self, wanted: int, walls_s: Sequence[float], typical_s: float) -> bool:
        """Return whether so many more trials, of a typical length, fit after those that took `walls_s`."""
        if self.trials is not None:
            return len(walls_s) + wanted <= self.trials
        return self.seconds is None or sum(walls_s) + wanted * typical_s <= self.seconds


Run = Callable[["Suite", Sequence["TrialConfig"]], int]
"""Runs trials of a suite that are not done yet and returns the runner's exit code."""


def run_until_decided(
    suite: Suite, trials: Sequence[TrialConfig], store: ResultStore, run: Run, budget: Budget
) -> tuple[int, str]:
    """Run trials, then again with fresh seeds those that may still be the fastest, until that is known.

    A round has as many seeds as `seeds_at_looks` wants.
    Ends where on each data set one is left, or all that are left are equal within `EQUAL`, or the budget is spent.
    Each round is a look at the results (`censored.compare`): all statements together err in 5 % at most. A run that
    was cut off, and begins again, does what it did: trials that are there are not run again.

    Args:
        store: where `run` keeps the records of the suite; the suite's own says why it ended, too.

    Returns:
        The runner's exit code, and why it ended; "" if it was interrupted.

    Raises:
        UserError: no time to a target is known after the first round.
    """
    from harness.results.record_store import seeds_at_looks

    def ended(why: str) -> tuple[int, str]:
        _keep_end(store, why)
        return worst, why

    ran, wanted, first, worst = dict[str, "TrialConfig"](), list(trials), len(suite.seeds), 0
    base = {trial.id for trial in trials}
    for count, more in itertools.pairwise(seeds_at_looks(first)):
        rounds = suite.model_copy(update={"seeds": _seeds(suite, count), "first_look": first})
        worst = max(worst, code := run(rounds, wanted))
        if code > 1:
            return code, ""
        ran |= {trial.id: trial for trial in wanted}
        undecided, ends = _look(store, ran)
        if not undecided:
            return ended(f"{', '.join(sorted(set(ends)))} with {count} seeds")
        wanted = _with_fresh_seeds(suite, [ran[id_] for id_ in undecided], count, more)
        fresh, last = (_walls_s(store.directory, ids) for ids in (ran.keys() - base, undecided))
        if not budget.allows(len(wanted), fresh, sum(last) / max(1, len(last))):
            return ended(f"not decided with {count} seeds: another round would exceed the budget of {budget.text}")
    raise AssertionError  # seeds do not end


def run_while_time_allows(
    suite: Suite, trials: Sequence[TrialConfig], store: ResultStore, run: Run, first: int, seconds: float
) -> tuple[int, str]:
    """Run trials with the `first` of the suite's seeds, then what reaches the target with fresh ones, as many as fit.

    What reaches it with none of the first seeds gets no more, and nothing is judged in between: the results are looked
    at once, at the end. A run that was cut off, and begins again, does what it did.

    Args:
        seconds: what all trials may take; what reaches the target has all seeds of the suite at least.
        store: as for `run_until_decided`, which explains what is returned, too.
    """
    begun = [trial for trial in trials if trial.seed in suite.seeds[:first]]
    worst = run(suite.model_copy(update={"seeds": suite.seeds[:first], "first_seeds": first}), begun)
    if worst > 1:
        return worst, ""
    arrived = _arrived(store, begun)
    each_s = sum(_walls_s(store.directory, {trial.id for trial in arrived})) / first
    left_s = seconds - sum(_walls_s(store.directory, {trial.id for trial in begun}))
    count = max(len(suite.seeds), first + int(left_s / each_s)) if each_s else first
    if count > first:
        fresh = _with_fresh_seeds(suite, arrived, first, count)
        more = suite.model_copy(update={"seeds": _seeds(suite, count), "first_seeds": first})
        worst = max(worst, run(more, fresh))
        if worst > 1:
            return worst, ""
    rows = len({trial.seedless for trial in arrived})
    then = f"{count} of each of the {rows} that reach the target" if rows else "none of which reaches the target"
    why = f"{first} seeds of each configuration, {then}"
    _keep_end(store, why)
    return worst, why


def _arrived(store: ResultStore, trials: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Return the trials of all configurations that reach the target with a seed."""
    ids = set[str]()
    for answer in _answers(store, {trial.id for trial in trials}):
        reached = [key for key, own in answer.times.items() if own.reached]
        ids |= {str(trial) for key in reached for trial in answer.section.select(*key, ok=False)["trial"]}
    return [trial for trial in trials if trial.id in ids]


def _with_fresh_seeds(suite: Suite, trials: Sequence[TrialConfig], first: int, count: int) -> list[TrialConfig]:
    """Return the same configurations with the seeds from `first` to `count`, in turns over all rounds."""
    from harness.suite.expand import expand

    kept, seeds = {trial.seedless for trial in trials}, _seeds(suite, count)
    every = expand(suite.model_copy(update={"seeds": seeds}), device=trials[0].device)
    return [trial for trial in every if trial.seed in seeds[first:] and trial.seedless in kept]


def _keep_end(store: ResultStore, why: str) -> None:
    from harness.results.record_store import SUITE_FILE, read_suite

    store.keep_suite(read_suite(store.directory / SUITE_FILE).model_copy(update={"decided": why}))


def _seeds(suite: Suite, count: int) -> tuple[int, ...]:
    """Return the first seeds: the suite's own, then those that follow the largest."""
    more = itertools.count(max(suite.seeds) + 1)
    return tuple(itertools.islice(itertools.chain(suite.seeds, more), count))


def _walls_s(directory: Path, ids: Collection[str]) -> list[float]:
    from harness.results.record_store import read_at

    return [read_at(directory / id_).wall_s or 0.0 for id_ in ids if (directory / id_).is_dir()]


def _look(store: ResultStore, ran: dict[str, TrialConfig]) -> tuple[set[str], list[str]]:
    """Return the trials of what may still be the fastest where that is not known; and how it is known elsewhere."""
    undecided, ends = set[str](), []
    for answer in _answers(store, ran):
        end = _end_of(answer)
        if end:
            ends.append(end)
        else:
            undecided |= {str(t) for key in answer.open for t in answer.section.select(*key, ok=False)["trial"]}
    return undecided, ends


def _answers(store: ResultStore, trials: Iterable[str]) -> list[AnswerView]:
    from harness.report.sections import make_sections
    from harness.report.views.answer import AnswerView
    from harness.results.frames import load_inputs

    inputs = load_inputs(store.directory).only({(store.suite, id_) for id_ in trials})
    return [AnswerView(section) for section in make_sections(inputs)]


def _end_of(answer: AnswerView) -> str:
    """Return why more seeds of a section are not needed; "" if they are."""
    if not answer.rows:
        fix = "evaluate at least 3 times a trial (train.eval_every), and time the epochs"
        raise UserError(f"no time to a score is known of {answer.section.name}", key="--until", fix=fix)
    if not answer.order:
        return "no method reaches the target"
    if len(answer.open) == 1:
        return "decided"
    return f"equal within {100 * EQUAL:g} %" if answer.equal(EQUAL) else ""
