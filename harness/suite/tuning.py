"""What a suite says of its tuning: budget, search, target and space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.spec import Spec

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
        said = [kind for kind in Range.model_fields if getattr(self, kind) is not None]
        if len(said) != 1:
            raise ValueError(f"write one of {', '.join(Range.model_fields)}" + (f", not {len(said)}" if said else ""))
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


def _range(written: Any) -> Any:
    """Take a list for a choice."""
    return {"choice": written} if isinstance(written, list | tuple) else written


Space = dict[str, Annotated[Range, BeforeValidator(_range)]]

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


class RelativeTarget(Spec):
    """A validation score below what the tuned baseline reaches."""

    of: str = Field(description="the baseline: a method of the suite")
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
        None, description="validation score to reach: a fraction, or `{of: METHOD, below: 0.005}`"
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
