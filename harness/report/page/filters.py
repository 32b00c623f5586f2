"""What a reader may choose to see: data sets, methods, numbers of parts, networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.trials.sections import Section


@dataclass(frozen=True)
class Choice:
    """One value of a filter; `under`: its variants, of a method with several, each with its colour."""

    value: str
    colour: str = ""
    under: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Filter:
    """A menu: `key` is the attribute (`data-<key>`) of what it shows and hides."""

    key: str
    title: str
    choices: tuple[Choice, ...]


def make_filters(sections: Sequence[Section]) -> list[Filter]:
    """Return the filters in which there is something to choose."""
    datasets = dict.fromkeys(section.name for section in sections)
    parts = sorted({parts for section in sections for parts in section.parts})
    networks = dict.fromkeys(name for section in sections for name in networks_of(section))
    filters = [
        Filter("dataset", "Data set", tuple(map(Choice, datasets))),
        Filter("method", "Method", _methods(sections)),
        Filter("parts", "Parts", tuple(Choice(str(count)) for count in parts)),
        Filter("network", "Network", tuple(map(Choice, networks))),
    ]
    return [each for each in filters if len(each.choices) > 1 or any(own.under for own in each.choices)]


def _methods(sections: Sequence[Section]) -> tuple[Choice, ...]:
    variants = {variant.key: variant for section in sections for variant in section.variants}
    own: dict[str, dict[str, str]] = {}
    for variant in variants.values():
        own.setdefault(variant.method, {})[variant.label] = variant.style.colour
    return tuple(
        Choice(method, under=tuple(Choice(label, colour) for label, colour in labels.items()))
        if len(labels) > 1
        else Choice(method, next(iter(labels.values())))
        for method, labels in own.items()
    )


def networks_of(section: Section) -> list[str]:
    """Return the networks of a section's trials; of one part there is none, unless all are."""
    several = section.frame[section.frame["parts"] > 1]
    frame = section.frame if several.empty else several
    return [str(name) for name in frame["network"].dropna().unique()]


def network_list(section: Section) -> str:
    """Return a section's networks as a JSON list, for its attribute."""
    return json.dumps(networks_of(section))
