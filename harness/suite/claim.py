"""What a suite says of claims: which trials, what is expected of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from harness.metrics import Formula
from harness.spec import Spec

Selector = dict[str, Any]  # as an entry of `exclude`: a trial must match all keys; a list allows several values


def _readable(text: str) -> str:
    Formula.parse(text)
    return text


def _not_empty(selector: Selector) -> Selector:
    if not selector:
        raise ValueError("selects every trial: name some of them, e.g. {method: full}")
    return selector


Selection = Annotated[Selector, AfterValidator(_not_empty)]


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
        kinds = ("at_least", "at_most", "between", "order")
        said = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(said) != 1:
            raise ValueError(f"write one of {', '.join(kinds)}" + (f", not {len(said)}" if said else ""))
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
    source: str = Field(min_length=1, max_length=200, description="paper and table, metric or section; or whose it is")
    metric: Annotated[str, AfterValidator(_readable)] = Field(
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
