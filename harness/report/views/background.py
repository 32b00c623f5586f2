"""What runs before the training or next to it: subgraphs that are counted, pools of batches, explanations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pandas as pd

from harness.report.figure import DOTTED, Chart, Figure, Layer, amount_axis, lines, make_figure, value_axis
from harness.report.sections import Section
from harness.report.sweeps import THREADS
from harness.report.table import Cell, Group, Table, by_parts, missing, number_cells, variants_table
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, SweptView, prose
from harness.results.stats import Stat, common_places, fixed, over_seeds, show_value, significant


class CountingView(ReportView):
    """What does it take to count subgraphs before the training?"""

    name = "counting"
    title = "Subgraphs counted"
    place = 120
    shows = ("presampled", "presample_s", "presample_threads")

    def table(self) -> Table | None:
        section = self.section
        drawn, seconds, threads, rates = (
            values_of(section, name) for name in ("presampled", "presample_s", "presample_threads", "subgraphs_per_s")
        )
        return variants_table(
            section,
            "Subgraphs counted before the training",
            prose("counting.table"),
            {
                "Subgraphs": number_cells(drawn, places=0),
                "Seconds": {key: Cell(significant(seconds[key].mean)) for key in rates},
                "Threads": {key: Cell(f"{threads[key].mean:g}") for key in rates},
                "Subgraphs / s": {key: Cell(significant(stat.mean)) for key, stat in rates.items()},
            },
            drawn,
            absent=Cell("reused"),
        )


class SweptPoolView(SweptView):
    """How much faster do more threads fill a pool?"""

    name = "swept-pool"
    anchor = "pool"
    title = "Batches of a pool a second"
    place = 40

    @property
    def rates(self) -> dict[tuple[Variant, int, float], Stat]:
        """The batches a second by variant, number of parts and threads; none if threads were not swept."""
        return self.swept.values_of("pooled_per_s") if self.swept.axis is THREADS else {}

    def table(self) -> Table | None:
        swept, rates = self.swept, self.rates
        if not rates:
            return None
        places = min(1, common_places(stat.mean for stat in rates.values()))
        heads = tuple(show_value(value) for value in swept.values)

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            own = [rates.get((variant, parts, value)) for value in swept.values]
            if not any(own):
                return ()
            base = own[0]
            return [
                *(Cell(fixed(stat.mean, places)) if stat else Cell() for stat in own),
                *(Cell(f"{stat.mean / base.mean:.2f}") if stat and base else Cell() for stat in own),
            ]

        return Table(
            "Batches of a pool a second by threads",
            prose("swept-pool.table", first=heads[0]),
            "Method",
            (Group("Batches / s, threads =", heads), Group("Speed-up (×), threads =", heads)),
            by_parts(swept.section, cells),
        )

    def figure(self) -> Figure | None:
        swept, rates = self.swept, self.rates
        if not rates:
            return None
        own: dict[tuple[Variant, int], dict[float, float]] = defaultdict(dict)
        for (variant, parts, value), stat in rates.items():
            own[variant, parts][value] = stat.mean
        ideal = {
            key: {threads: rate * threads / first for threads in at}
            for key, at in own.items()
            for first, rate in [next(iter(at.items()))]
        }
        x = value_axis(swept.axis.name, swept.axis.label, swept.values)
        y = amount_axis("pooled_per_s", "Batches / s", [stat.mean for stat in rates.values()])
        layers = Layer(lines(ideal, x, y), "path", dash=DOTTED, exported=False), Layer(lines(own, x, y))
        caption = "The numbers of the table above; dotted: as many times more as there are threads. Higher is better."
        title, share = "Batches of a pool a second and threads", ("none", "all")
        return make_figure(swept.section, "pool", title, caption, [Chart(layers, x, y)], 3.6, share=share)


COUNTS = ("explanations", "explain_failed", "explain_unmoved", "explain_late")
FOUND = ("explain_loss", "explain_sn", "explain_sf")
OTHERS = ("explain_s", "explain_cpu_s", "explain_bytes", "guided_steps", "mask_age")
REPORTED = {name: f"stat_{name}" for name in (*COUNTS, *FOUND, *OTHERS)}
NONE = Cell("none")  # of a quotient whose divisor is 0
HEADS = {  # column of `_trials`: heading, decimals (None: as the smallest value needs)
    "explanations": ("Explanations", 1), "failed": ("Failed", 1), "unmoved": ("Unmoved", 1), "late": ("Left out", 1),
    "seconds": ("Each (s)", None), "cpu_seconds": ("CPU (s)", None), "share": ("Of epochs (%)", 1),
    "held": ("Held (MiB)", None), "explain_loss": ("Loss", None), "explain_sn": ("SN", 2),
    "explain_sf": ("SF", 2), "guided": ("Guided steps (%)", 1), "age": ("Age (steps)", 1),
}  # fmt: skip


class ExplanationsView(ReportView):
    """What do explanations during the training cost, and how old are they?"""

    name = "explanations"
    title = "Explanations"
    place = 130
    shows = tuple(REPORTED.values())

    def table(self) -> Table | None:
        """Return explanations by variant and parts; None if no method reports any, made or failed.

        A variant whose explanations were never due has a row if others of its method explain.
        """
        section = self.section
        trials = _trials(section)
        if trials is None:
            return None
        explaining = set(trials.loc[trials["reports"], "method"])
        by_cell = dict(iter(trials.groupby(["variant", "parts"])))
        means = trials.groupby(["variant", "parts"])[list(HEADS)].mean()
        places = {name: _places(means[name], given) for name, (_, given) in HEADS.items()}

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            if variant.method not in explaining:
                return ()
            if (variant.key, parts) not in by_cell:
                return [missing(section, variant, parts)] * len(HEADS)
            own = by_cell[variant.key, parts]
            stats = {name: over_seeds(own[name]) for name in HEADS}
            return [Cell(fixed(stat.mean, places[name])) if stat else NONE for name, stat in stats.items()]

        return Table(
            "Explanations",
            prose("explanations.table"),
            "Method",
            (Group("", tuple(heading for heading, _ in HEADS.values())),),
            by_parts(section, cells),
        )


def _trials(section: Section) -> pd.DataFrame | None:
    """Return a row a trial that ended well, columns as `HEADS`; None if no trial reports any.

    From the epochs' sums, not their means after warm-up: explanations are few, and not every epoch has one.
    """
    epochs = section.epochs
    if not any(REPORTED[name] in epochs and epochs[REPORTED[name]].notna().any() for name in COUNTS):
        return None
    columns = {**REPORTED, "epoch_time_s": "epoch_time_s", "steps": "steps"}
    known = epochs.reindex(columns=["trial", *columns.values()]).groupby("trial")
    sums = known.sum(min_count=1).rename(columns={column: name for name, column in columns.items()})
    reports = sums[list(COUNTS)].notna().any(axis=1)
    sums[list(REPORTED)] = sums[list(REPORTED)].fillna(0)  # what never happened is not reported
    made, ended = sums["explanations"], sums[["explanations", "explain_failed", "explain_unmoved"]].sum(axis=1)
    values = pd.DataFrame(
        {
            "reports": reports,
            "explanations": made,
            "failed": sums["explain_failed"],
            "unmoved": sums["explain_unmoved"],
            "late": sums["explain_late"],
            "seconds": sums["explain_s"] / ended.where(ended > 0),
            "cpu_seconds": sums["explain_cpu_s"] / ended.where(ended > 0),
            "share": 100 * sums["explain_s"] / sums["epoch_time_s"],
            "held": sums["explain_bytes"] / 2**20 / made.where(made > 0),
            **{name: sums[name] / made.where(made > 0) for name in FOUND},
            "guided": 100 * sums["guided_steps"] / sums["steps"],
            "age": sums["mask_age"] / sums["guided_steps"].where(sums["guided_steps"] > 0),
        }
    )
    return section.ok[["trial", "method", "variant", "parts"]].merge(values, left_on="trial", right_index=True)


def _places(values: pd.Series[float], given: int | None) -> int:
    """Return the decimals of a column; none if all of it are whole numbers."""
    known = values.dropna()
    if (known % 1 == 0).all():
        return 0
    return common_places(known[known != 0].abs()) if given is None else given
