"""Choosing trials by what they are: `--only` and `exclude`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from harness.errors import UserError, nearest
from harness.models.spec import ModelSpec
from harness.runtime.spec import TrainSpec
from harness.spec import RENAMED
from harness.suite import document
from harness.suite.schema import TrialConfig

KEYS = ("dataset", "model", "method", "parts", "partitioner", "network", "seed", "id")


def matches(trial: TrialConfig, expr: str, options: Collection[str] = ()) -> bool:
    """Return whether a trial is one that `--only` asks for.

    Args:
        trial: the trial.
        expr: `method=bns-gcn|full,parts=2,rate=0.1`: all of the comma-separated terms must hold, one of the
            values after `=`. Keys: dataset, model, method, parts, partitioner, network (its label), seed, id
            (its beginning is enough), the options of methods, and with a dot those of data sets, models and
            training (`dataset.scale`, `model.hidden`, `train.threads`); a trial that lacks the option does
            not match.
        options: known besides those of this trial's method and of installed ones: its suite's plugins'.

    Raises:
        UserError: malformed, or a key that nothing has.
    """
    terms = _terms(expr)
    try:
        check_keys(terms, {*trial.method.options, *options})
    except UserError as error:
        raise UserError(f"{error.message} '{error.key}'", file=f"--only {expr}", fix=error.fix) from error
    return all(holds(trial, key, values) for key, values in terms.items())


def holds(trial: TrialConfig, key: str, values: Sequence[Any]) -> bool:
    """Return whether `key` of a trial is one of `values`."""
    known: dict[str, Any] = {
        "dataset": trial.dataset.name,
        "model": trial.model.name,
        "method": trial.method.name,
        "parts": trial.partition.parts,
        "partitioner": trial.partition.method,
        "network": "none" if trial.network is None else trial.network.label,
        "seed": trial.seed,
    }
    if key == "id":
        return any(trial.id.startswith(str(value)) for value in values)
    known |= {f"dataset.{option}": value for option, value in trial.dataset.options.items()}
    known |= {f"model.{field}": value for field, value in trial.model.model_dump().items()}
    known |= {f"train.{field}": value for field, value in trial.train.model_dump().items()}
    if key not in known and key not in trial.method.options:
        key = RENAMED.get(key, key)
        if key not in trial.method.options:
            return False
    return (known[key] if key in known else trial.method.options[key]) in values


def rule(written: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return what an entry of `exclude` or a claim asks for: for every key a list of alternatives."""
    return {key: value if isinstance(value, list) else [value] for key, value in written.items()}


def check_keys(keys: Iterable[str], options: Collection[str] = ()) -> None:
    """Raise a UserError, its `key` set, for a key that neither trials nor installed methods have.

    `options` are those of methods that need not be installed, a suite's plugins.
    Options of data sets (`dataset.<option>`) are not looked at: each data set has its own.
    """
    unknown = [key for key in keys if key not in (*KEYS, *options) and not key.startswith("dataset.")]
    if not unknown:
        return
    from harness.runtime.method import METHODS

    known: set[str] = {*KEYS, *options, *RENAMED, *(f"model.{field}" for field in ModelSpec.model_fields)}
    known |= {f"train.{field}" for field in TrainSpec.model_fields}
    for name in METHODS.names():
        with contextlib.suppress(UserError):  # a broken plugin is not this expression's mistake
            known |= set(METHODS.load(name).Options.model_fields)
    for key in unknown:
        if key not in known:
            raise UserError("unknown key", key=key, fix=nearest(key, known))


def _terms(expr: str) -> dict[str, list[Any]]:
    """Split an expression into keys and their allowed values."""
    terms: dict[str, list[Any]] = {}
    for term in re.split(r",(?![^\[]*\])", expr):  # a comma inside [10,5] belongs to the value
        key, separator, value = (part.strip() for part in term.partition("="))
        if not separator or not key or not value:
            raise UserError(
                f"'{term}' is not of the form key=value", file=f"--only {expr}", fix="e.g. method=bns-gcn|full,parts=2"
            )
        if key in terms:
            raise UserError(f"'{key}' twice", file=f"--only {expr}", fix=f"{key}=a|b allows both")
        verbatim = key == "id"  # 12e4 is the beginning of an id, not a number
        terms[key] = [v if verbatim else document.parse(v, f"--only {expr}").data for v in value.split("|")]
    return terms
