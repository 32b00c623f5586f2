"""Flags: trials whose timings a reader should not trust without looking."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd

from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant
from harness.results.stats import ENOUGH, NOISY

CLOSURE = 0.02  # share of a mean epoch that no named phase may cover


@dataclass(frozen=True)
class Flag:
    """Something wrong with a trial's timing.

    `chosen` tells which of the trials of a frame it holds for; `detail` says how bad it is in those.
    """

    mark: str
    lead: str
    rule: str
    chosen: Callable[[pd.DataFrame], pd.Series[bool]]
    detail: Callable[[pd.DataFrame], str]

    def where(self, section: Section) -> str:
        """Name the variants and parts of a section that it holds for, and how badly; "" if for none."""
        bad = section.ok[self.chosen(section.ok)]
        found = []
        for variant in section.variants:
            by_parts = bad[bad["variant"] == variant.key].groupby("parts", sort=True)
            if shown := [f"{parts:.0f} ({self.detail(trials)})" for parts, trials in by_parts]:
                found.append(f"{variant.label} at P = {', '.join(shown)}")
        return f"{section.title}: {'; '.join(found)}" if found else ""


def _width(frame: pd.DataFrame) -> pd.Series[float]:
    return (frame["epoch_time_high_s"] - frame["epoch_time_low_s"]) / frame["epoch_time_s"]


FLAGS = (
    Flag(
        "†",
        "Too short",
        f"fewer than {ENOUGH} timed epochs after warm-up, too few for a 95 % interval of their median",
        lambda frame: frame["too_short"].eq(True),
        lambda bad: f"{bad['timed_epochs'].min():.0f}",
    ),
    Flag(
        "‡",
        "Noisy timing",
        f"95 % bootstrap interval of the median epoch time wider than {NOISY:.0%} of it".replace("%", " %"),
        lambda frame: frame["noisy"].eq(True),
        lambda bad: _worst(_width(bad)),
    ),
    Flag(
        "§",
        "Phases do not add up",
        f"more than {CLOSURE:.0%} of a rank's mean epoch is in no named phase".replace("%", " %"),
        lambda frame: frame["residue"] > CLOSURE,
        lambda bad: _worst(bad["residue"]),
    ),
)


def _worst(shares: pd.Series[float]) -> str:
    return f"{100 * shares.max():.1f} %"


def marks(section: Section, variant: Variant, parts: int) -> str:
    """Return the marks of the flags that hold for any seed of a variant."""
    trials = section.select(variant, parts)
    return "".join(flag.mark for flag in FLAGS if flag.chosen(trials).any())


def explain(section: Section) -> str:
    """Say what the marks in a section's table mean, "" if there are none."""
    used = [f"{flag.mark} {flag.rule}" for flag in FLAGS if flag.chosen(section.ok).any()]
    return f" Of at least one seed: {'; '.join(used)}." if used else ""


def flagged(flag: Flag, sections: Iterable[Section]) -> int:
    """Return how many trials a flag holds for."""
    return len({
        (row.suite, row.trial)
        for section in sections
        for row in section.ok[flag.chosen(section.ok)].itertuples()
    })  # fmt: skip
