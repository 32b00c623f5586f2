"""What a method's exchanges save against uniform neighbour sampling."""

from __future__ import annotations

from typing import Any

from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

WHOLE: dict[str, Any] = {"feature_rate": 1.0, "feature_loss": 0.0}  # all that is read is there


def exchanges(section: Section) -> Figures:
    """Return the bytes of exchanges, where mini-batches can be held against those of `graphsage`.

    None where no mini-batch method but one variant of `graphsage` sends anything.
    """
    sent = figures_of(section, "exchanged_bytes")
    batches = {key for key in figures_of(section, "communicated_nodes") if key[1] > 1 and key in sent}
    compared = {parts for variant, parts in batches if len(_of(batches, parts)) > 1 and _plain(variant)}
    return {key: stat for key, stat in sent.items() if key[1] in compared}


def uniform_of(sent: Figures, variant: Variant, parts: int) -> Variant | None:
    """Return the variant of `graphsage` with all features that is most like another in its options."""
    found = [other for other in _of(sent, parts) if _plain(other)]
    return max(found, key=lambda other: (_shared(variant, other), sent[other, parts].mean), default=None)


def saving(sent: Figures, variant: Variant, parts: int) -> float | None:
    """Return 1 - own bytes / those of `uniform_of`; None if one of them is not in `sent`."""
    base = uniform_of(sent, variant, parts)
    if base is None or (variant, parts) not in sent or not sent[base, parts].mean:
        return None
    return 1 - sent[variant, parts].mean / sent[base, parts].mean


def _of(keys: Figures | set[tuple[Variant, int]], parts: int) -> list[Variant]:
    return [variant for variant, count in keys if count == parts]


def _plain(variant: Variant) -> bool:
    """Whether a variant is `graphsage` with all features."""
    return variant.method == "graphsage" and WHOLE.items() <= {**WHOLE, **variant.options}.items()


def _shared(one: Variant, other: Variant) -> int:
    """Return how many options two variants have alike."""
    mine, yours = one.options, other.options
    return sum(_each(mine[name]) == _each(yours[name]) for name in mine.keys() & yours.keys())


def _each(value: Any) -> Any:
    """Return an option's value; a list that says the same of every layer is that."""
    same = isinstance(value, list) and value and all(item == value[0] for item in value)
    return value[0] if same else value
