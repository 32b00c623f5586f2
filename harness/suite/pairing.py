"""Which trials a claim holds against which, and whether a suite has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.errors import UserError
from harness.metrics import Formula, Metric, find_metric
from harness.suite.document import KeyPath
from harness.suite.schema import Claim, Selector, Suite, TrialConfig
from harness.suite.select import check_keys, holds, rule

Cell = tuple[TrialConfig, ...]  # trials that differ in their seed only
Row = tuple[Cell, ...]  # what is compared


def rows_of(claim: Claim, trials: Sequence[TrialConfig]) -> list[Row]:
    """Return what a claim compares: (of,), (of, over), or one cell an item of `order`.

    Raises:
        UserError: a selector finds nothing, or several trials where one is needed; its `key` is where in the
            claim (`of`, `over`, `expect.order.1`).
    """
    rows: list[Row] = []
    for _, row in pairs_of(claim, trials):
        if isinstance(row, UserError):
            raise row
        rows.append(row)
    return rows


def pairs_of(claim: Claim, trials: Sequence[TrialConfig]) -> Iterator[tuple[Cell, Row | UserError]]:
    """Yield every cell that `of` selects (an order's first item, too) with its row, or why it has none.

    Raises:
        UserError: `of`, `over` or an item of the order selects no trial at all.
    """
    first, *others = [(where, _select(trials, where, selector)) for where, selector in _selectors(claim)]
    free = {key.split(".")[0] for named in (claim.over or {}, *(claim.expect.order or ())) for key in named}
    if "dataset" in free:
        free |= {"model", "train"}  # a data set may bring its own
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
        message = f"compares '{cell[0].label}' with " + (
            f"{len(partners)} trials: {said}" if partners else "no trial of the suite"
        )
        raise UserError(message, key=where, fix="select one for each" if partners else None)
    return partners[0]


def claim_errors(suite: Suite, trials: Sequence[TrialConfig]) -> Iterator[UserError]:
    """Yield an error for each claim that cannot be evaluated on the suite's trials.

    A suite changed by overrides may lack some of the trials that its claims speak of.
    """
    for i, claim in enumerate(suite.claims):
        wrong = [*_unknown_columns(claim, trials), *_unknown_keys(claim, trials)]
        if not wrong and not suite.source.overrides:
            try:
                rows_of(claim, trials)
            except UserError as error:
                wrong.append(error)
        for mistake in wrong:
            path: KeyPath = tuple(int(p) if p.isdecimal() else p for p in (mistake.key or "").split("."))
            yield suite.source.error(("claims", i, *path), mistake.message, mistake.fix)


def _selectors(claim: Claim) -> list[tuple[str, Selector]]:
    """Return where each selector is written, and all that it asks for."""
    if claim.expect.order is not None:
        return [(f"expect.order.{i}", claim.of | item) for i, item in enumerate(claim.expect.order)]
    return [("of", claim.of), *([("over", claim.over)] if claim.over is not None else [])]


def _unknown_columns(claim: Claim, trials: Sequence[TrialConfig]) -> Iterator[UserError]:
    formula, declared = Formula.parse(claim.metric), _declared(trials)
    for name in (*formula.columns, *formula.per):
        try:
            find_metric(name, declared)
        except UserError as error:
            yield UserError(f"unknown column '{name}'", key="metric", fix=error.fix)


def _declared(trials: Sequence[TrialConfig]) -> list[Metric]:
    """Return the metrics that the trials' methods declare."""
    from harness.runtime.method import METHODS

    methods = {(trial.method.name, trial.plugin) for trial in trials}
    found = (METHODS.loaded(name, source) for name, source in methods)
    return [metric for method in found if method for metric in method.metrics_by_column().values()]


def _unknown_keys(claim: Claim, trials: Sequence[TrialConfig]) -> Iterator[UserError]:
    options = {key for trial in trials for key in trial.method.options}
    written = [("of", claim.of), ("over", claim.over or {})]
    written += [(f"expect.order.{i}", item) for i, item in enumerate(claim.expect.order or ())]
    for where, selector in written:
        try:
            check_keys(selector, options)
        except UserError as error:
            yield UserError(f"{error.message} '{error.key}'", key=where, fix=error.fix)


def _select(trials: Sequence[TrialConfig], where: str, selector: Selector) -> list[TrialConfig]:
    found = [t for t in trials if all(holds(t, key, values) for key, values in rule(selector).items())]
    if not found:
        raise UserError("selects no trial of the suite", key=where, fix="see `harness plan`")
    return found


def _cells(trials: Sequence[TrialConfig]) -> list[Cell]:
    """Group trials that differ in their seed only."""
    cells: dict[str, list[TrialConfig]] = {}
    for trial in trials:
        cells.setdefault(trial.model_copy(update={"seed": 0}).id, []).append(trial)
    return [tuple(cell) for cell in cells.values()]


def _alike(one: TrialConfig, other: TrialConfig, free: set[str]) -> bool:
    """Whether two trials agree in all but what is free and the seed."""
    mine, yours = _aspects(one), _aspects(other)
    if one.method.name != other.method.name:
        options = one.method.options.keys() | other.method.options.keys()
        free = free | {f"option {key}" for key in options}
    else:
        free = free | {f"option {key}" for key in free}
    return all(mine.get(key) == yours.get(key) for key in (mine.keys() | yours.keys()) - free)


def _aspects(trial: TrialConfig) -> dict[str, Any]:
    partition = trial.partition
    return {
        "dataset": trial.dataset,
        "model": trial.model,
        "method": trial.method.name,
        "parts": partition.parts,
        "partitioner": partition.model_copy(update={"parts": 1}),
        "network": trial.network,
        "train": trial.train,
        **{f"option {key}": value for key, value in trial.method.options.items()},
    }
