"""A report's trials on other networks: sections with projected times, what they say, and a table of all networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from harness.report.sections import Section
from harness.report.summary import answer_sentence
from harness.report.table import Cell, Group, Key, Row, Table
from harness.report.values import by_seed
from harness.report.views import prose
from harness.report.views.answer import AnswerView
from harness.results.censored import Times
from harness.results.frames import RecordKey
from harness.results.projection import (
    LINKS,
    LOOPBACK,
    Checked,
    HostLink,
    base_of,
    checked,
    counterparts,
    network_of,
    project,
    why_not,
)
from harness.results.record import Record
from harness.results.stats import common_places, join_unique, time_unit, trials

TIMES = ("epoch_time_s", "epoch_time_low_s", "epoch_time_high_s", "time_to_target_s")


class EpochView(AnswerView):
    """Which method has the shortest epoch: what `AnswerView` is, with an epoch in place of the time to a target."""

    def _amounts(self, name: str) -> dict[Key, Times]:
        found = {key: by_seed(self.section, *key, "epoch_time_s") for key in self.section.cells}
        times = {key: {int(str(seed)): float(t) for seed, t in own.items()} for key, own in found.items()}
        return {key: Times(own, {}) for key, own in times.items() if own and name == "time_s"}


@dataclass(frozen=True)
class Elsewhere:
    """Sections on another network, by anchor: those with something to project.

    `off`: how far their times may be off.
    """

    link: HostLink
    off: Checked
    sections: Mapping[str, Section]

    def sentence(self, section: Section, name: str) -> str:
        """Return who reaches the target first there, and that this is a projection; `name`: of the data."""
        return qualified(
            f"Projected to {self.link.label} ({self.off})", answer_sentence(self.sections[section.anchor], name)
        )

    @property
    def frame(self) -> pd.DataFrame:
        """The trials that ended well, a row each, with their times on this network."""
        frames = []
        for section in self.sections.values():
            labels = {variant.key: variant.label for variant in section.variants}
            own = section.ok.assign(
                label=section.ok["variant"].map(labels), network=self.link.name, error=self.off.error
            )
            frames.append(own.reindex(columns=["suite", "trial", "label", "parts", "seed", "network", *TIMES, "error"]))
        return pd.concat(frames, ignore_index=True)

    def marked(self, table: Table) -> Table:
        """Return a table of these sections whose caption says that it is a projection."""
        note = prose("elsewhere.table", network=self.link.label, off=self.off)
        return replace(table, caption=f"{note} {table.caption}")


def qualified(how: str, said: str) -> str:
    """Return a sentence behind the words that say how it is known."""
    return f"{how}: {said[0].lower()}{said[1:]}"


def ranking(section: Section) -> AnswerView:
    """Return how rows compare: by the time to the target, where that is reached, else by an epoch's."""
    found = AnswerView(section)
    return found if found.order else EpochView(section)


def placed(view: AnswerView) -> list[tuple[Key, float | None, str]]:
    """Return the rows in their order, the fastest first, each with its median in seconds and how it compares."""
    first = view.medians[view.order[0]] if view.order else None
    open_ = "fastest" if len(view.open) == 1 else "may be the fastest"
    found: list[tuple[Key, float | None, str]] = []
    for key in [*view.order, *(each for each in view.rows if each not in view.order)]:
        median = view.medians[key]
        said = "most seeds do not reach it"
        if median and first:
            times = f"{median.centre / first.centre:.2f} times the shortest"
            said = open_ if key in view.open else f"behind, {times}"
        found.append((key, median.centre if median else None, said))
    return found


def unchanged(section: Section) -> Section | None:
    """Return a section that is the same on every network, as all its trials are on one part; else None."""
    return section if max(section.parts, default=1) == 1 else None


def not_projected(records: Iterable[Record]) -> str:
    """Return how many trials on several ranks cannot be projected and why, in a sentence; "" if all can."""
    found = Counter(why for each in records if (why := why_not(each)) and each.status == "ok" and len(each.ranks) > 1)
    return f"Not projected: {'; '.join(f'{trials(count)} ({why})' for why, count in found.items())}." if found else ""


def find_elsewhere(
    sections: Sequence[Section],
    records: Mapping[RecordKey, Record],
    links: Sequence[HostLink] = LINKS,
    base: str | None = None,
) -> list[Elsewhere]:
    """Return sections on each of the links; nothing where no trial can be projected."""
    chosen = (base_of(group, base) for group in counterparts(records.values()))
    bases, off = {(one.suite, one.trial): one for one in chosen if one}, checked(records.values())
    made = [
        Elsewhere(link, off, {
            section.anchor: own for section in sections
            if (own := section_on(section, link, bases, off))
        }) for link in links
    ]  # fmt: skip
    return [each for each in made if each.sections]


def section_on(section: Section, link: HostLink, bases: Mapping[RecordKey, Record], off: Checked) -> Section | None:
    """Return a section with its trials' times on another network; None if none of them is among `bases`.

    Epochs are scaled as the trial's headline is. Trials on one part stay, and those that did not end well; others that
    are not among `bases` are left out. The target is the measured trials'. Energy is not known there.
    """
    ratios: dict[str, float] = {}
    for row in section.frame.to_dict("records"):
        trial, record = str(row["trial"]), bases.get((str(row["suite"]), str(row["trial"])))
        if record:
            spec = network_of(record)
            on = project(record, replace(link, ranks_per_host=spec.ranks_per_host) if spec else link)
            ratios[trial] = on.epoch_time_s / float(record.result["epoch_time_s"])
        elif row["parts"] == 1 or row["status"] != "ok":
            ratios[trial] = 1.0
    return rescaled(section, ratios, f"projected to {link.label}", off)


def rescaled(
    section: Section, ratios: Mapping[str, float], where: str, off: Checked, ranks: int | None = None
) -> Section | None:
    """Return a section's trials that have a ratio, with their times multiplied by it; None if none has several parts.

    `where`: in words; `ranks`: the number of parts there, in place of those above 1.
    """
    frame = section.frame[section.frame["trial"].isin(ratios)]
    if not (frame["parts"].gt(1) & frame["status"].eq("ok")).any():
        return None

    def scaled(rows: pd.DataFrame) -> pd.DataFrame:
        by = rows["trial"].map(ratios).astype(float)
        return rows.assign(**{name: pd.to_numeric(rows[name]) * by for name in TIMES if name in rows})

    there = scaled(frame.drop(columns=frame.filter(like="energy_").columns)).assign(network=LOOPBACK)
    if ranks is not None:
        there["parts"] = there["parts"].where(there["parts"] == 1, ranks)
    found = replace(
        section,
        extra=join_unique([section.extra, where]),
        frame=there,
        repeats=None if section.repeats is None else scaled(section.repeats),
        epochs=scaled(section.epochs[section.epochs["trial"].isin(ratios)]),
        parts=tuple(sorted(int(parts) for parts in there["parts"].unique())),
        off=off,
    )
    sums = {
        trial: sums.assign(time_s=sums["time_s"] * ratios[trial])
        for trial, sums in section.epoch_sums.items()
        if trial in ratios
    }
    # What is known of all trials, whether they can be projected or not.
    vars(found).update(target=section.target, derived_from=section.derived_from, epoch_sums=sums)
    return found


def networks_table(section: Section, there: Sequence[Elsewhere]) -> Table | None:
    """Return the median times of each row by network, the measured one first; None where nothing is projected."""
    first = ranking(section)
    views = [first, *(type(first)(each.sections[section.anchor]) for each in there if section.anchor in each.sections)]
    if len(views) < 2 or not first.rows:
        return None
    middles = [median.centre for view in views for median in view.medians.values() if median]
    size, unit = time_unit(max(middles, default=None))
    places = common_places(middle / size for middle in middles)

    def column(view: AnswerView) -> dict[Key, Cell]:
        own = view.written([key for key in first.rows if key in view.rows])
        return {
            key: replace(cell, text=f"{median.centre / size:,.{places}f}") if (median := view.medians[key]) else cell
            for key, cell in own.items()
        }

    columns = [column(view) for view in views]
    rows = [
        Row(f"{key[0].label}, P = {key[1]}", tuple(own.get(key, Cell(number=False)) for own in columns), *key)
        for key in first.rows
    ]
    what = "Epoch time" if isinstance(first, EpochView) else f"Time to {section.target_text.split(' (')[0]}"
    heads = ("Measured", *(each.link.label for each in there if section.anchor in each.sections))
    caption = prose("elsewhere.networks", off=there[0].off)
    return Table(f"{what} by network ({unit})", caption, "Method", (Group("", heads),), tuple(rows))
