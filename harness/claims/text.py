"""How a claim's numbers are written: their unit, what is expected, what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from harness.metrics import Formula, Metric, find_metric
from harness.results.stats import Interval, byte_unit, show_value, significant, time_unit
from harness.suite.sections import Claim

By = Literal["ratio", "difference"]
_SIGNS = {"increasing": " < ", "decreasing": " > "}


def unit_of(claim: Claim, declared: Iterable[Metric] = ()) -> str:
    """Return the unit that a claim's values are written in; "" for plain numbers.

    `declared`: the metrics of methods' own.
    """
    formula = Formula.parse(claim.metric)
    if compares(claim) == "ratio":
        return "×"
    if formula.per:
        return ""
    metric = find_metric(formula.columns[0], declared)
    if metric.difference:
        return "%" if claim.by is None else "points"
    unit = metric.unit.removesuffix("/epoch")
    return unit if unit in ("s", "B") else ""


def compares(claim: Claim) -> By | None:
    """Return how a claim compares: by ratio, by difference, or not (None)."""
    return (claim.by or "ratio") if claim.over is not None else None


def number(value: float, unit: str, bounds: Sequence[float] = ()) -> str:
    """Write a value in its unit, with three digits, or as many as it takes to tell it from the bounds."""
    return f"{_digits(value, unit, bounds)} {_scale(value, unit)[1]}".rstrip()


def span(low: float, high: float, unit: str, bounds: Sequence[float]) -> str:
    """Write two values as `number` does, their unit once where it is the same."""
    ends = low, high
    return _spanned([_digits(end, unit, bounds) for end in ends], [_scale(end, unit)[1] for end in ends], " to ")


def _spanned(texts: Sequence[str], names: Sequence[str], join: str) -> str:
    first = texts[0] if names[0] == names[1] else f"{texts[0]} {names[0]}"
    return f"{first}{join}{texts[1]} {names[1]}".rstrip()


def _digits(value: float, unit: str, bounds: Sequence[float] = ()) -> str:
    size, _ = _scale(value, unit)

    def write(one: float, digits: int) -> str:
        if unit in ("%", "points"):
            return f"{one / size:{'+' if unit == 'points' else ''}.{digits - 1}f}"
        return significant(one / size, digits)

    looks_alike = [b for b in bounds if b != value and math.isfinite(b)]
    enough = (d for d in range(3, 9) if all(write(b, d) != write(value, d) for b in looks_alike))
    return write(value, next(enough, 9))


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return in what to write a value: (how much of the metric's unit, name)."""
    if unit in ("%", "points"):
        return 0.01, unit
    if unit == "B":
        return byte_unit(abs(value))
    return time_unit(abs(value)) if unit == "s" else (1.0, unit)


def with_interval(value: float, interval: Interval | None, unit: str, bounds: Sequence[float] = ()) -> str:
    """Write a value and its interval, the ends in the value's unit."""
    if interval is None:
        return number(value, unit, bounds)
    size, name = _scale(value, unit)
    own = unit if unit in ("%", "points") else ""
    ends = (end if own else end / size for end in (interval.low, interval.high))
    low, high = (_digits(end, own) for end in ends)
    return f"{_digits(value, unit, bounds)} [{low}, {high}] {name}".rstrip()


def _bound(value: float, unit: str) -> str:
    """Write a bound as briefly as the suite does."""
    size, name = _scale(value, unit)
    return f"{value / size:{'+' if unit == 'points' and value else ''}.6g} {name}".rstrip()


def expectation(claim: Claim, unit: str) -> str:
    """Write what a claim expects; `unit`: as `unit_of` has it."""
    expect = claim.expect
    if expect.order is not None:
        order = _SIGNS[expect.direction or "increasing"].join(selector_text(item) for item in expect.order)
        allowed = f" ({100 * expect.tolerance:g} % the wrong way allowed)" if expect.tolerance else ""
        return order + allowed
    if expect.between is not None:
        low, high = expect.between
        if low == high:
            return _bound(low, unit)
        texts, _, names = zip(*(_bound(end, unit).partition(" ") for end in (low, high)), strict=True)
        return "between " + _spanned(texts, names, " and ")
    if expect.at_least is not None:
        return f"at least {_bound(expect.at_least, unit)}"
    return f"at most {_bound(expect.at_most or 0.0, unit)}"


def subject(claim: Claim) -> str:
    """Write what a claim measures: its metric, of which trials, over which."""
    over = f" over {selector_text(claim.over)}" if claim.over is not None else ""
    return f"{claim.metric} of {selector_text(claim.of)}{over}"


def selector_text(selector: Mapping[str, Any]) -> str:
    """Write a selector: its keys' values, with the key where the value is no name."""
    return " ".join(
        value if isinstance(value, str) else f"{key.split('.')[-1]}={show_value(value)}"
        for key, value in selector.items()
    )


def differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say for each of several flat configurations what sets it apart: as few of its keys as tell them all."""
    chosen: list[str] = []
    told, keys = 1, {key for config in configs for key in config}
    # Names come before options, and these before what a data set brings with it.
    for key in sorted(keys, key=lambda key: (not key.endswith((".name", "dataset.options.of")), key)):
        kinds = len({str([config.get(k) for k in (*chosen, key)]) for config in configs})
        if kinds > told:
            chosen, told = [*chosen, key], kinds
    return [selector_text({key: config[key] for key in chosen if config.get(key) is not None}) for config in configs]
