"""What a column of results is: which way is better, what to call a change, how far reruns differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.errors import UserError, nearest
from harness.results.frames import COLUMNS, TEXT

Better = Literal["less", "more"]
SCORES = ("best_val", "test_at_best_val", "final_val", "final_test", "sampled_test_at_best_val")
RATES = ("throughput_epochs_s", "train_nodes_per_s")
# Standard deviations of log(one run / another) of the same code on one machine: docs/design/compare.md.
RERUN, DRIFT, MEMORY = 0.03, 0.02, 0.02


@dataclass(frozen=True)
class Metric:
    """A figure to compare trials by.

    `better`: None where nothing says which way is. `words`: of less and of more of it. `difference`: changes
    are told as differences, not as ratios. `exact`: the same code gives the same figure, bit for bit.
    `rerun`, `drift`: how far two runs of the same code are apart (standard deviation of the ratio's
    logarithm): each trial by itself (None: not known), and all of them together, because the machine is
    another today.
    """

    column: str
    better: Better | None
    words: tuple[str, str]
    difference: bool = False
    exact: bool = False
    rerun: float | None = None
    drift: float = 0.0

    @property
    def timed(self) -> bool:
        """Whether it says something of the machine too."""
        return self.drift > 0

    @property
    def by_epoch(self) -> bool:
        """Whether the time of an epoch decides it, so that epochs tell how sure it is."""
        return self.column in ("epoch_time_s", *RATES)

    def word(self, change: float) -> str:
        """Return what to call a change; negative is less."""
        return self.words[change > 0]

    def worse(self, change: float) -> bool:
        """Return whether a change is for the worse; never where nothing says which way is better."""
        return change > 0 if self.better == "less" else self.better == "more" and change < 0


def metric_of(column: str) -> Metric:
    """Return what is known of a column of `load_results`; UserError if it is no figure."""
    known = [name for name in COLUMNS if name not in TEXT and name not in ("parts", "seed")]
    if column not in known and not column.startswith(("stat_", "time_")):
        raise UserError(f"'{column}' is no figure of a trial", key="--metric", fix=nearest(column, known))
    if column in SCORES:
        return Metric(column, "more", ("worse", "better"), difference=True)
    if column in RATES:
        return Metric(column, "more", ("slower", "faster"), rerun=RERUN, drift=DRIFT)
    if column.endswith("_s") and not column.startswith("stat_"):
        rerun = RERUN if column == "epoch_time_s" else None
        return Metric(column, "less", ("faster", "slower"), rerun=rerun, drift=DRIFT)
    if column.startswith("bytes_"):
        return Metric(column, "less", ("less", "more"), exact=True)
    if column.startswith("energy_"):
        return Metric(column, "less", ("less", "more"), drift=DRIFT)
    if column.endswith("_bytes"):
        return Metric(column, "less", ("less", "more"), rerun=MEMORY)
    return Metric(column, None, ("lower", "higher"))
