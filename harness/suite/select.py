"""Choosing trials by what they are (`--only`, `exclude`), and pairing those that a claim compares."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.errors import UserError, folded, nearest
from harness.metrics import Formula, find_metric
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec
from harness.suite import document
from harness.suite.document import KeyPath
from harness.suite.schema import Suite, TrialConfig
from harness.suite.sections import Claim, Selector

KEYS = ("dataset", "model", "method", "parts", "partitioner", "network", "seed", "repeat", "id")
NAMES = ("dataset", "model", "method", "partitioner")  # case, `-` and `_` make no difference in them


def chosen(trials: Sequence[TrialConfig], expr: str, options: Collection[str] = ()) -> list[TrialConfig]:
    """Return the trials that `--only` asks for.

    `expr`: as for `matches`; or words of labels as they are printed, all of which a trial's label must have
    ("bns-gcn(rate=0.1) P=2"), one trial's whole label among them.
    """
    words = set(expr.split())
    labelled = [trial for trial in trials if words <= set(trial.label.split())]
    return labelled or [trial for trial in trials if matches(trial, expr, options)]


def matches(trial: TrialConfig, expr: str, options: Collection[str] = ()) -> bool:
    """Return whether a trial is one that `--only` asks for.

    Args:
        trial: the trial.
        expr: `method=bns-gcn|full,parts=2,rate=0.1`: all of the comma-separated terms must hold, one of the values
            after `=`. Keys: dataset, model, method, parts, partitioner, network (its label), seed, repeat, id (its
            beginning is enough), the options of methods, and with a dot those of data sets, models and training
            (`dataset.scale`, `model.hidden`, `train.threads`); a trial whose method lacks the option does not match.
        options: known besides those of this trial's method and of installed ones: its suite's plugins'.

    Raises:
        UserError: malformed, or a key that nothing has.
    """
    terms = _terms(expr)
    try:
        check_keys(terms, {*trial.method.options, *options}, trial.dataset.options)
    except UserError as error:
        raise UserError(f"{error.message} '{error.key}'", file=f"--only {expr}", fix=error.fix) from error
    return fits(trial, terms)


def fits(trial: TrialConfig, asked: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether every key of a trial is one of the values that are asked for; see `rule`."""
    return all(holds(trial, key, values) for key, values in asked.items())


def holds(trial: TrialConfig, key: str, values: Sequence[Any]) -> bool:
    """Return whether `key` of a trial is one of `values`."""
    known: dict[str, Any] = {
        "dataset": trial.dataset.name,
        "model": trial.model.name,
        "method": trial.method.name,
        "parts": trial.partition.parts,
        "partitioner": trial.partition.method,
        "network": link(trial),
        "seed": trial.seed,
        "repeat": trial.repeat,
    }
    if key == "id":
        return any(trial.id.startswith(str(value)) for value in values)
    known |= {f"dataset.{option}": value for option, value in trial.dataset.options.items()}
    known |= {f"model.{field}": value for field, value in trial.model.model_dump().items()}
    known |= {f"train.{field}": value for field, value in trial.train.model_dump().items()}
    known = trial.method.options | known
    if key in NAMES:
        return folded(known[key]) in [folded(str(value)) for value in values]
    if key not in known:  # perhaps an option that a trial's options leave out where it has its default
        from harness.runtime.method import METHODS

        with contextlib.suppress(UserError):  # the records of a plugin are read without it
            known |= METHODS.load(trial.method.name, trial.plugin).Options.option_defaults()
    return key in known and known[key] in values


def link(trial: TrialConfig) -> str:
    """Return the label of a trial's network."""
    return "none" if trial.network is None else trial.network.label


def rule(written: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return what an entry of `exclude` or a claim asks for: for every key a list of alternatives."""
    return {key: value if isinstance(value, list) else [value] for key, value in written.items()}


def check_keys(keys: Iterable[str], options: Collection[str] = (), of_data: Iterable[str] = ()) -> None:
    """Raise a UserError, its `key` set, for a key that neither trials nor installed methods have.

    `options` are those of methods that need not be installed, a suite's plugins.
    Options of data sets (`dataset.<option>`) are not looked at: each data set has its own; `of_data` may be meant.
    """
    unknown = [key for key in keys if key not in (*KEYS, *options) and not key.startswith("dataset.")]
    if not unknown:
        return
    from harness.runtime.method import METHODS

    known: set[str] = {*KEYS, *options, *(f"model.{field}" for field in ModelSpec.model_fields)}
    known |= {f"train.{field}" for field in TrainSpec.model_fields}
    for name in METHODS.names():
        with contextlib.suppress(UserError):  # a broken plugin is not this expression's mistake
            known |= set(METHODS.load(name).Options.model_fields)
    for key in unknown:
        if key not in known:
            dotted = [name for name in (*known, *(f"dataset.{name}" for name in of_data)) if name.endswith(f".{key}")]
            raise UserError("unknown key", key=key, fix=f"write {dotted[0]}" if dotted else nearest(key, known))


def _terms(expr: str) -> dict[str, list[Any]]:
    terms: dict[str, list[Any]] = {}
    for term in re.split(r",(?![^\[]*\])", expr):  # a comma inside [10,5] belongs to the value
        key, separator, value = (part.strip() for part in term.partition("="))
        if not separator or not key or not value:
            what = f"'{term}' is not of the form key=value"
            raise UserError(what, file=f"--only {expr}", fix="e.g. method=bns-gcn|full,parts=2")
        if key in terms:
            raise UserError(f"'{key}' twice", file=f"--only {expr}", fix=f"{key}=a|b allows both")
        verbatim = key == "id"  # 12e4 is the beginning of an id, not a number
        terms[key] = [v if verbatim else document.parse(v, f"--only {expr}").data for v in value.split("|")]
    return terms


Cell = tuple[TrialConfig, ...]  # trials that differ in their seed only
Row = tuple[Cell, ...]  # what is compared: (of,), (of, over), or one cell an item of `order`


def pairs_of(claim: Claim, trials: Sequence[TrialConfig]) -> Iterator[tuple[Cell, Row | UserError]]:
    """Yield every cell that `of` selects (an order's first item, too) with its row, or why it has none.

    Results have one value for all repeats of a trial: the first stands for them.

    UserError if `of`, `over` or an item of the order selects no trial at all; the `key` of all errors is where in the
    claim (`of`, `over`, `expect.order.1`).
    """
    trials = [trial for trial in trials if not trial.repeat]
    of, *named = _selectors(claim)
    free = {key.split(".")[0] for _, selector in named for key in selector}
    if "dataset" in free:
        free |= {"model", "train"}  # a data set may bring its own
    wanted = [of, *named] if claim.expect.order is None else [(where, claim.of | item) for where, item in named]
    first, *others = [(where, [trial for trial in trials if fits(trial, rule(selector))]) for where, selector in wanted]
    for where, selected in (first, *others):
        if not selected:
            raise UserError("selects no trial of the suite", key=where, fix="see `harness plan`")
    for cell in _cells(first[1]):
        try:
            yield cell, (cell, *(_partner(cell, where, selected, free) for where, selected in others))
        except UserError as error:
            yield cell, error


def _partner(cell: Cell, where: str, selected: Sequence[TrialConfig], free: set[str]) -> Cell:
    """Return the one cell of the selected trials that is like `cell` in all but what is free."""
    partners = _cells([trial for trial in selected if _alike(trial, cell[0], free)])
    if len(partners) != 1:
        said = " and ".join(f"'{partner[0].label}'" for partner in partners[:2])
        found = f"{len(partners)} trials: {said}" if partners else "no trial of the suite"
        what = f"compares '{cell[0].label}' with {found}"
        raise UserError(what, key=where, fix="select one for each" if partners else None)
    return partners[0]


def claim_errors(suite: Suite, trials: Sequence[TrialConfig]) -> Iterator[UserError]:
    """Yield an error for each claim that cannot be evaluated on the suite's trials.

    A suite changed by overrides may lack some of the trials that its claims speak of.
    """
    options = {key for trial in trials for key in trial.method.options}
    for i, claim in enumerate(suite.claims):
        wrong = [*_unknown_columns(claim, trials)]
        for where, selector in _selectors(claim):
            try:
                check_keys(selector, options)
            except UserError as error:
                wrong.append(UserError(f"{error.message} '{error.key}'", key=where, fix=error.fix))
        if not wrong and not suite.source.overrides:
            try:
                wrong += [row for _, row in pairs_of(claim, trials) if isinstance(row, UserError)][:1]
            except UserError as error:
                wrong.append(error)
        for mistake in wrong:
            path: KeyPath = tuple(int(p) if p.isdecimal() else p for p in (mistake.key or "").split("."))
            yield suite.source.error(("claims", i, *path), mistake.message, mistake.fix)


def _selectors(claim: Claim) -> list[tuple[str, Selector]]:
    """Return where each selector is written, and what it says; an item of the order is written without `of`."""
    order = [(f"expect.order.{i}", item) for i, item in enumerate(claim.expect.order or ())]
    return [("of", claim.of), *([("over", claim.over)] if claim.over is not None else order)]


def _unknown_columns(claim: Claim, trials: Sequence[TrialConfig]) -> Iterator[UserError]:
    from harness.runtime.method import METHODS

    methods = {(trial.method.name, trial.plugin) for trial in trials}
    found = [METHODS.loaded(name, source) for name, source in methods]
    declared = [metric for method in found if method for metric in method.metrics_by_column().values()]
    formula = Formula.parse(claim.metric)
    for name in (*formula.columns, *formula.per):
        try:
            find_metric(name, declared)
        except UserError as error:
            yield UserError(f"unknown column '{name}'", key="metric", fix=error.fix)


def _cells(trials: Sequence[TrialConfig]) -> list[Cell]:
    """Group trials that differ in their seed only; those of a suite are all of today's data."""
    cells: dict[str, list[TrialConfig]] = {}
    for trial in trials:
        cells.setdefault(trial.model_copy(update={"seed": 0, "data": None}).id, []).append(trial)
    return [tuple(cell) for cell in cells.values()]


def _alike(one: TrialConfig, other: TrialConfig, free: set[str]) -> bool:
    mine, yours = _aspects(one), _aspects(other)
    options = free
    if one.method.name != other.method.name:
        options = one.method.options.keys() | other.method.options.keys()
    free = free | {f"option {key}" for key in options}
    return all(mine.get(key) == yours.get(key) for key in (mine.keys() | yours.keys()) - free)


def _aspects(trial: TrialConfig) -> dict[str, Any]:
    model, train = trial.workload  # what a method sets itself is the method's
    return {
        "dataset": trial.dataset,
        "model": model,
        "method": trial.method.name,
        "parts": trial.partition.parts,
        "partitioner": trial.partition.model_copy(update={"parts": 1}),
        "network": trial.network,
        "train": train,
        **{f"option {key}": value for key, value in trial.method.options.items()},
    }
