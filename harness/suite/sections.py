"""Sections of a suite file: networks, claims, tuning."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.metrics import Formula
from harness.spec import Spec

UNLIMITED = "unlimited"
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.ASCII)


def parse_rate(text: str) -> float:
    """Return the bits a second of "100mbit", "2.5gbit" (decimal units, as tc writes them) or "unlimited".

    ValueError for anything else.
    """
    if text == UNLIMITED:
        return math.inf
    return _parse(text, _BITS, "write a rate as 100mbit, 1gbit or unlimited")


def parse_latency(text: str) -> float:
    """Return the seconds of "50us", "0.5ms" or "0s"; ValueError for anything else."""
    if text == "0":
        return 0.0
    return _parse(text, _SECONDS, "write a latency as 50us or 0.5ms")


def rate_text(bits_s: float) -> str:
    """Write a rate in the largest unit that leaves a number of at least 1: "1gbit"."""
    return UNLIMITED if math.isinf(bits_s) else _text(bits_s, _BITS)


def latency_text(seconds: float) -> str:
    """Write a latency in the largest unit that leaves a number of at least 1: "500us"."""
    return "0" if seconds == 0 else _text(seconds, _SECONDS)


def _parse(text: str, units: dict[str, Any], fix: str) -> float:
    found = _NUMBER.fullmatch(str(text).strip().lower())
    if found is None or found[2] not in units:
        raise ValueError(f"'{text}' is not understood: {fix}")
    return float(found[1]) * float(units[found[2]])


def _text(value: float, units: dict[str, Any]) -> str:
    fitting = [unit for unit, size in units.items() if value >= size * (1 - 1e-9)]
    unit = fitting[-1] if fitting else next(iter(units))
    return f"{float(f'{value / units[unit]:.6g}'):g}{unit}"


def _rate(value: Any) -> str:
    text = rate_text(parse_rate(str(value)))
    if text == "0bit":
        raise ValueError("a rate must be more than 0")
    return text


class NetworkSpec(Spec):
    """A network that ranks are put on: a link of one rate and latency for each host, all to one switch."""

    rate: Annotated[str, BeforeValidator(_rate)] = Field(
        UNLIMITED, description="bits a second of a host's link, each direction, e.g. 1gbit; or unlimited"
    )
    latency: Annotated[str, BeforeValidator(lambda written: latency_text(parse_latency(str(written))))] = Field(
        "0", description="delay added to each packet on its way between hosts, e.g. 50us"
    )
    ranks_per_host: int = Field(1, ge=1, description="ranks that share a host and its link")

    @property
    def bits_s(self) -> float:
        """Bits a second of a host's link in each direction; infinite if unlimited."""
        return parse_rate(self.rate)

    @property
    def latency_s(self) -> float:
        """Seconds added to each packet."""
        return parse_latency(self.latency)

    @property
    def label(self) -> str:
        """The network in a few words, e.g. "1gbit+50us, 2 ranks a host"."""
        delay = "" if self.latency == "0" else f"+{self.latency}"
        shared = "" if self.ranks_per_host == 1 else f", {self.ranks_per_host} ranks a host"
        return f"{self.rate}{delay}{shared}"


Selector = dict[str, Any]  # as an entry of `exclude`: a trial must match all keys; a list allows several values


def _not_empty(selector: Selector) -> Selector:
    if not selector:
        raise ValueError("selects every trial: name some of them, e.g. {method: full}")
    return selector


Selection = Annotated[Selector, AfterValidator(_not_empty)]


def _require_one(spec: Spec, keys: Collection[str]) -> None:
    given = [key for key in keys if getattr(spec, key) is not None]
    if len(given) != 1:
        raise ValueError(f"write one of {', '.join(keys)}" + (f", not {len(given)}" if given else ""))


class Expect(Spec):
    """One of four expectations: a lower bound, an upper bound, both, or an order of trials."""

    at_least: float | None = Field(None, description="the value is this or more")
    at_most: float | None = Field(None, description="the value is this or less")
    between: tuple[float, float] | None = Field(None, description="the value is in this range, ends included")
    order: tuple[Selection, ...] | None = Field(
        None, min_length=2, description="trials whose values rise or fall in this order"
    )
    direction: Literal["increasing", "decreasing"] | None = Field(None, description="of `order`")
    tolerance: float | None = Field(
        None, ge=0, lt=1, description="of `order`: how far a step may go the wrong way, as a share of the value before"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Expect:
        _require_one(self, ("at_least", "at_most", "between", "order"))
        if self.between is not None and self.between[0] > self.between[1]:
            raise ValueError("the range of `between` is empty: write the smaller number first")
        if self.order is not None and self.direction is None:
            raise ValueError("`order` needs `direction: increasing` or `direction: decreasing`")
        if self.order is None and (self.direction is not None or self.tolerance is not None):
            raise ValueError("`direction` and `tolerance` belong to `order`")
        return self


class Claim(Spec):
    """A sentence that the suite's results make true or false.

    `of` selects trials. Without `over` and `order` each one's value must be as expected. With `over` each is
    compared with the trial that matches `over` and is like it in all that `over` does not name (options of
    the method only if it is the same method): their ratio, or difference, must be as expected. With `order`
    every trial of `of` that matches the first item begins a row, continued in the same way by the items
    after it. Seeds are repetitions: values are means over those of the suite, or that a selector names.
    """

    name: str = Field(min_length=1, max_length=200, description="the claim as a sentence")
    source: str = Field(
        "", max_length=200, description="paper and table, metric or section; left out, the claim is one's own"
    )
    metric: Annotated[str, AfterValidator(lambda text: Formula.parse(text) and text)] = Field(
        description="a column of load_results or stat_<name>; sums and one quotient: `a + b / c`"
    )
    of: Selection = Field(description="the trials that it is about, keys as for `exclude`")
    over: Selection | None = Field(None, description="what they are compared with: only what differs")
    by: Literal["ratio", "difference"] | None = Field(
        None, description="how they are compared; default ratio where there is `over`"
    )
    expect: Expect = Field(description="what is expected of the metric, see below")

    @model_validator(mode="after")
    def _fits(self) -> Claim:
        if self.over is None and self.by is not None:
            raise ValueError("`by` needs `over`: what to compare with")
        if self.over is not None and self.expect.order is not None:
            raise ValueError("`order` compares trials with each other: remove `over`")
        return self


Goal = Literal["best_val", "time_to_target"]
Sampler = Literal["random", "qmc", "tpe"]


class Range(Spec):
    """Values that a setting is searched in: one of four."""

    uniform: tuple[float, float] | None = Field(None, description="any number between the two, each as likely")
    log: tuple[float, float] | None = Field(None, description="any number between the two, each power as likely")
    integer: tuple[int, int] | None = Field(None, description="any whole number between the two, both included")
    choice: tuple[Any, ...] | None = Field(None, min_length=1, description="one of these; a list is short for it")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        _require_one(self, Range.model_fields)
        if self.bounds is not None:
            low, high = self.bounds
            if low >= high:
                raise ValueError(f"the range [{low:g}, {high:g}] is empty: write the smaller number first")
            if self.log is not None and low <= 0:
                raise ValueError(f"bad value {low:g}: a logarithm needs numbers above 0")
        elif self.choice is not None and len({repr(value) for value in self.choice}) < len(self.choice):
            raise ValueError("a value is listed twice: leave one of them")
        return self

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The two ends, None of a choice."""
        return self.uniform or self.log or self.integer


Space = dict[
    str,
    Annotated[Range, BeforeValidator(lambda given: {"choice": given} if isinstance(given, list | tuple) else given)],
]

DEFAULT_SPACE: Mapping[str, Any] = {
    "train.lr": {"log": (1e-3, 1e-1)},
    "train.weight_decay": {"choice": (0.0, 1e-5, 1e-4, 5e-4)},
    "model.dropout": {"uniform": (0.0, 0.7)},
}
"""What is searched of every method unless a suite says otherwise: the ranges of common public configurations."""


class Budget(Spec):
    """What each method may spend on each data set in each study; the same for all."""

    trials: int = Field(15, ge=1, le=10_000, description="trials of a study")
    seconds: float | None = Field(None, gt=0, description="training seconds of a trial, at most")
    total_seconds: float | None = Field(None, gt=0, description="training seconds of a study: no trial begins after")

    @model_validator(mode="after")
    def _enough_for_a_trial(self) -> Self:
        if self.seconds is not None and self.total_seconds is not None and self.total_seconds < self.seconds:
            raise ValueError(
                f"total_seconds of {self.total_seconds:g} are below one trial's {self.seconds:g}: make them more"
            )
        return self


BEST = "best"  # the method with the highest score


class RelativeTarget(Spec):
    """A validation score below what the tuned baseline reaches."""

    of: str = Field(
        description="the baseline: a method of the suite; or `best`: whichever comes highest with the suite's model"
    )
    below: float = Field(0.005, ge=0, lt=1, description="how far below its score, as a fraction")


RULESETS: Mapping[str, Mapping[str, Any]] = {
    # AlgoPerf (Dahl et al., 2023), external tuning: 5 studies of 20 trials at first, 3 of 5 in its competition.
    "algoperf": {"budget": {"trials": 5}, "studies": 3, "goal": "time_to_target", "default_first": False}
}


class TuningSpec(Spec):
    """How the methods of a suite are tuned, each with the same budget."""

    ruleset: Literal["algoperf"] | None = Field(
        None, description="algoperf: 5 trials, 3 studies, by time to target, where these are not given"
    )
    budget: Budget = Field(Budget(), description="of each method, data set and study")
    studies: int = Field(
        1, ge=1, le=1_000, description="independent searches; the one of median success is the method's"
    )
    sampler: Sampler = Field(
        "random", description="random: independent draws; qmc: Sobol's sequence; tpe: learns from earlier trials"
    )
    pruner: Literal["none", "asha"] = Field(
        "none",
        description="asha: stops trials whose validation score at equal training seconds is not in the best third",
    )
    goal: Goal = Field(
        "best_val", description="what the best trial has: the highest validation score, or the shortest time"
    )
    target: float | RelativeTarget | None = Field(
        None, description="validation score to reach: a fraction, or `{of: METHOD, below: 0.005}`, METHOD may be `best`"
    )
    default_first: bool = Field(
        True, description="the first trial of each study has the settings that the suite gives; the others are drawn"
    )
    seed: int = Field(0, ge=0, description="of what is drawn")
    space: Space = Field(
        default_factory=dict,
        description="`train.KEY`, `model.dropout`, `model.norm`: what is searched of every method; default: "
        "learning rate, weight decay, dropout",
    )
    per_method: dict[str, Space] = Field(
        default_factory=dict,
        description="by a method's name: its own options, in place of those that it declares, and shared keys",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_ruleset(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(name := data.get("ruleset"), str) and name in RULESETS:
            return {**RULESETS[name], **data}
        return data

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.goal == "time_to_target" and self.target is None:
            raise ValueError("`goal: time_to_target` needs a `target`")
        if isinstance(self.target, float) and not 0 < self.target <= 1:
            raise ValueError(f"bad value {self.target:g} of target: a score is a fraction, above 0 and at most 1")
        if self.pruner == "asha" and self.budget.seconds is None:
            raise ValueError("`pruner: asha` compares trials at equal seconds: give `budget.seconds`")
        return self
