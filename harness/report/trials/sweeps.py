"""Sweeps over an option: variants of a method that differ in it alone, as lines of a figure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.palette import Style
from harness.report.trials.variants import Variant, variant_label


@dataclass(frozen=True)
class Line:
    """Variants that differ in one option: `points` are its values, ascending, each with its variant."""

    label: str
    style: Style
    points: tuple[tuple[float, Variant], ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.points[0][1].method


def sweep(variants: Sequence[Variant], option: str) -> list[Line]:
    """Return the lines along a numeric option, of two values at least; none if it was not swept."""
    groups: dict[str, list[Variant]] = defaultdict(list)
    for variant in variants:
        if isinstance(variant.options.get(option), int | float):
            rest = {name: value for name, value in variant.options.items() if name != option}
            groups[json.dumps([variant.method, rest], sort_keys=True)].append(variant)
    swept = [group for group in groups.values() if len(group) > 1]
    return [
        Line(
            variant_label(group[0].method, group[0].options, _varying(swept, group[0].method) - {option}),
            group[0].style,
            tuple(sorted(((v.options[option], v) for v in group), key=lambda point: point[0])),
        )
        for group in swept
    ]


def _varying(groups: Sequence[Sequence[Variant]], method: str) -> set[str]:
    """Return the options in which the lines of a method differ."""
    mine = [group[0].options for group in groups if group[0].method == method]
    return {name for options in mine for name in options if any(o.get(name) != options[name] for o in mine)}
