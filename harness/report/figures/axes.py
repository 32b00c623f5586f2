"""Axes that figures share: amounts from 0 or logarithmic, the values of a setting as ticks."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

WIDE = 8.0  # largest / smallest from which on an axis is logarithmic


def spans_far(amounts: Sequence[float]) -> bool:
    """Whether amounts, those that are 0 aside, need a logarithmic axis."""
    own = [amount for amount in amounts if amount]
    return bool(own) and max(own) > WIDE * min(own) > 0


def value_axis(ax: Axes, values: Sequence[float], label: str) -> None:
    """Give the x axis a tick for each of a setting's values, ascending; logarithmic where they span far."""
    if values[0] > 0 and spans_far(values):
        ax.set_xscale("log")
    names = {value: f"{value:,g}" for value in values}
    ax.xaxis.set_major_locator(FixedLocator(list(values)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: names.get(value, "")))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(label)
    sns.despine(ax=ax)


def amount_axis(ax: Axes, label: str, amounts: Sequence[float]) -> None:
    """Let the y axis of amounts begin at 0, or make it logarithmic where they span far."""
    wide = min(amounts, default=0.0) > 0 and spans_far(amounts)
    ax.set_ylabel(f"{label}, log scale" if wide else label)
    if wide:
        ax.set_yscale("log")
        _plain_numbers(ax.yaxis)
    else:
        ax.set_ylim(0, 1.05 * ax.get_ylim()[1])  # room for a marker at the top


def cost_axis(ax: Axes, label: str, amounts: Sequence[float]) -> None:
    """Make the x axis of amounts logarithmic where they span far, else begin it at 0 if that is near."""
    wide = spans_far(amounts)
    ax.set_xlabel(f"{label}, log scale" if wide else label)
    if wide:
        ax.set_xscale("log")
        _plain_numbers(ax.xaxis)
    elif min(amounts, default=0.0) < max(amounts, default=0.0) / 2:
        ax.set_xlim(0, 1.06 * max(amounts))
    sns.despine(ax=ax)


def _plain_numbers(axis: Axis) -> None:
    """Write the ticks of a logarithmic axis without exponents."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
