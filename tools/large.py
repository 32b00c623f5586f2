"""The page of large graphs: how time and memory grow with a graph's entries, and what that makes of ogbn-papers100M.

    python -m tools.large RESULTS [DOCS]

RESULTS is the directory of a run of `suites/large.yaml`; DOCS, by default `docs`, gets `large.md` and
`images/large.svg`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.data.catalog import boundary_of, published
from harness.report.figure import Axis, Chart, Figure, Layer
from harness.report.palette import MARKERS, Style
from harness.report.printing import draw
from harness.report.values import counted_units
from harness.results.frames import row_of
from harness.results.record import Record
from harness.results.record_store import read_at, records_under

TARGET = "ogbn-papers100m"
LARGE = 3  # graphs, the largest that fit, that a slope is fitted to: what every process has weighs little there
GB = 1e9
LIMIT = 20 * GB  # of the cgroup that the page is of
MACHINES = 64
NETWORK = 10e9 / 8  # bytes a second of each machine
FEATURE_BYTES = 4  # of a prepared value
WHOLE_GRAPH = ("graphsaint",)  # methods whose rows are drawn anywhere: P - 1 of P are remote


PAGE = """# Large graphs

<!-- Made from results by `python -m tools.large`; do not edit. -->

`harness run suites/large.yaml` trains six methods on twins of {target} (generated), up to {nodes} million
nodes and {entries} million entries (directed edges), in {ranks} parts of KaMinPar, and scores each exactly. These
runs were on one machine ({machine}), {ranks} ranks on {cores}, in a cgroup whose limit is 20 GB for all ranks
together, mapped files included. Each ran once, for three epochs, of which two are timed.

![Time and memory by entries](images/large.svg)

## Time and memory by entries

Features of the largest graph are {stored} GB, and lie in files. An asterisk: what a trial holds and the rows that its
epoch asks of files are together more than the 20 GB, so that the disk is read again and again; no slope is of such a
trial. A dash: not run. Slope: the exponent over the {large} largest graphs without an asterisk; 1 is linear.

{epochs}

Memory: the ranks' peaks of the proportional set, added up, and so the most that it can have been at once; mapped pages
are in it, which the kernel takes back where memory is short. The last column is of the two largest graphs without an
asterisk.

{memory}

Rows that an epoch asks of files, and exact scores of all nodes, whose rows of layers wait in files:

{asked}

{scores}

What `sign` aggregates once, before the first epoch; it trains on the rows of training nodes alone (1.1 %). The larger
the graph, the fewer columns at once take no more than `eval_memory`, and the more often its edges are read:

{once}

KaMinPar took {cut_s} s for the largest graph (slope {cut_slope:.2f}), next to other work. Its boundary is
{boundary:.3f} of the nodes; METIS leaves {boundary_here} of the published set's.

## What that makes of {target}

**Extrapolated**, not measured: {billions:.3g} billion entries, {times:.3g} times the largest graph above. On this
machine, had it memory enough, times go on by their slope, and memory grows with entries as in the last column. The set
has {a_node:.0f} entries a node and the twin {a_node_here:.0f}: what grows with nodes is rather less.

On {machines} machines with a rank each, a rank has {share:.3g} million entries, while one of the largest graph has
{share_here:.3g}. Computing and memory are those of a graph with as many entries a rank. The exchange is the bytes that
a rank of the largest graph sent, in proportion to entries, at 10 Gbit/s without latency: remote rows grow as the
boundary does ({boundary_there} of the nodes in {machines} parts, {source}), those of `graphsaint` as the share of other
machines. The all-reduce is left out.

{beyond}

**What bounds it.** One machine prepares the whole graph: its features are {features:.3g} GB, and as much again by part;
KaMinPar would take {cut_h} hours by the slope. `harness data shard` then writes each machine its own ranks' features,
with all edges and labels.
"""


class Run(NamedTuple):
    """A trial: a method on a graph."""

    method: str
    nodes: int
    entries: int
    boundary: float  # of all parts, in multiples of the nodes
    ranks: int
    epoch_s: float
    low_s: float
    high_s: float
    memory: float  # bytes of all ranks together
    score_s: float  # the exact evaluation
    partition_s: float
    sent: float  # bytes an epoch of all ranks, but the all-reduce's
    asked: float  # bytes an epoch that all ranks ask of files
    once_s: float = 0  # what is computed before the first epoch

    @property
    def short(self) -> bool:
        """Whether what it holds and asks of files was more than there was."""
        return self.memory + self.asked > LIMIT

    @classmethod
    def of(cls, record: Record) -> Run:
        """Return what a record says. Peaks of proportional sets are of the ranks' own moments: a sum is the most."""
        row = row_of(record)
        return cls(
            row["method"],
            record.dataset["nodes"],
            record.dataset["edges"],
            row["boundary_nodes"] / row["inner_nodes"],
            len(record.ranks),
            row["epoch_time_s"],
            row["epoch_time_low_s"],
            row["epoch_time_high_s"],
            sum(rank["meters"]["peak_pss_bytes"] for rank in record.ranks),
            row["eval_s"],
            max(rank["found"]["partition"] for rank in record.ranks),
            sum(row[f"bytes_{purpose}"] for purpose in ("feature", "embedding", "gradient", "control")),
            row["bytes_disk"],
            row["precompute_s"] or 0,
        )


def slope(entries: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent b of the values ~ entries^b that fits best in logarithms."""
    return float(np.polyfit(np.log(entries), np.log(values), 1)[0])


class Line(NamedTuple):
    """A quantity of one method by entries, ascending."""

    entries: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The exponent over the largest graphs."""
        return slope(self.entries[-LARGE:], self.values[-LARGE:])

    @property
    def more(self) -> float:
        """What an entry adds, from the last graph but one to the last."""
        return (self.values[-1] - self.values[-2]) / (self.entries[-1] - self.entries[-2])

    def at(self, entries: float) -> float:
        """Return the value at so many entries: on the line between graphs, by the slope beyond the largest."""
        if entries > self.entries[-1]:
            return float(self.values[-1] * (entries / self.entries[-1]) ** self.slope)
        return float(np.exp(np.interp(np.log(entries), np.log(self.entries), np.log(self.values))))

    def grown(self, entries: float) -> float:
        """Return the value at so many entries, where beyond the largest graph each adds as many."""
        return (
            self.at(entries)
            if entries <= self.entries[-1]
            else self.values[-1] + self.more * (entries - self.entries[-1])
        )


def line(runs: Sequence[Run], value: Callable[[Run], float]) -> Line:
    """Return the values of one method's runs by entries, of those that memory was not short for."""
    ordered = sorted((run for run in runs if not run.short), key=lambda run: run.entries)
    return Line(tuple(float(run.entries) for run in ordered), tuple(value(run) for run in ordered))


def sent_by_machine(run: Run, machines: int, entries: float) -> float:
    """Return the bytes that a machine sends an epoch, where it has `entries` as a rank of the run has its own.

    Remote rows grow as the boundary does, or, where a method draws anywhere, as the share of other machines.
    """
    own = run.sent / run.ranks * entries / (run.entries / run.ranks)
    if run.method in WHOLE_GRAPH:
        return own * (1 - 1 / machines) / (1 - 1 / run.ranks)
    found = boundary_of(TARGET, machines)
    assert found, f"no boundary of {TARGET} in {machines} parts is published"
    return own * found[0] / run.boundary


def read(results: Path) -> tuple[dict[str, list[Run]], Record]:
    """Return each method's runs, and a record to name the machine by. Exits where there is nothing to show."""
    records = [read_at(path) for path in records_under(results)]
    ended = [record for record in records if record.status == "ok"]
    if not ended:
        raise SystemExit(f"{results}: no finished trials; `harness run suites/large.yaml` makes them")
    runs = dict[str, list[Run]]()
    for record in sorted(ended, key=lambda record: (record.dataset["edges"], record.started)):
        run, own = Run.of(record), runs.setdefault(record.config["method"]["name"], [])
        if any(other.entries == run.entries for other in own):
            raise SystemExit(f"{results}: two trials of {run.method} on one graph; leave one of them there")
        own.append(run)
    return runs, max(ended, key=lambda record: record.started)


def picture(runs: Mapping[str, Sequence[Run]], colours: Mapping[str, str]) -> Figure:
    """Return the two panels: an epoch's seconds and the memory of all ranks, by entries."""
    rows = [
        {"series": name, "method": name, "parts": run.ranks, "entries": run.entries / 1e6, "epoch": run.epoch_s}
        | {"low": run.low_s, "high": run.high_s, "memory": run.memory / GB}
        for name, own in runs.items()
        for run in own
    ]
    data = pd.DataFrame(rows)
    across = Axis("entries", "millions of entries (directed edges)", log=True)
    time, memory = Axis("epoch", "an epoch, s", log=True), Axis("memory", "all ranks together, GB", log=True)
    panels = (
        Chart((Layer(data, interval=("low", "high")),), across, time, "", title="Time"),
        Chart((Layer(data),), across, memory, "", title="Memory"),
    )
    looks = {name: Style(colours[name], MARKERS[i], "-") for i, name in enumerate(runs)}
    ranks = next(iter(runs.values()))[0].ranks
    subject = f"twins of {TARGET} in {ranks} parts on one machine"
    return Figure("large", "Time and memory by entries", "", subject, (panels,), 3.6, looks)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    marks = [":--", *["--:"] * (len(heads) - 1)]
    return [f"| {' | '.join(row)} |" for row in (heads, marks, *rows)]


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _by_entries(
    runs: Mapping[str, Sequence[Run]], what: str, value: Callable[[Run], float], last: str = "slope"
) -> list[str]:
    sizes = sorted({run.entries for own in runs.values() for run in own})
    rows = []
    for name, own in runs.items():
        cells = {run.entries: _short(value(run)) + "\\*" * run.short for run in own}
        at = line(own, value)
        known = len(at.values) >= LARGE and min(at.values) > 0
        end = (f"{at.slope:.2f}" if last == "slope" else _short(1e8 * at.more)) if known else "-"
        rows.append([f"`{name}`", *(cells.get(size, "-") for size in sizes), end])
    return _table([f"{what}; million entries:", *(f"{size / 1e6:.3g}" for size in sizes), last], rows)


def _beyond(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    info = published()[TARGET].info
    own = info.edges / MACHINES
    rows = []
    for name, each in runs.items():
        largest = max(each, key=lambda run: run.entries)
        epoch, memory = (line(each, lambda run: run.epoch_s), line(each, lambda run: run.memory))
        alike = own * largest.ranks  # entries of the whole graph where a rank has as many as a machine of 64
        exchange = sent_by_machine(largest, MACHINES, own) / NETWORK
        rows.append([
            f"`{name}`", _short(epoch.at(info.edges)), _short(memory.grown(info.edges) / GB), _short(epoch.at(alike)),
            _short(exchange), _short(memory.grown(alike) / GB / largest.ranks),
        ])  # fmt: skip
    ranks = largest.ranks
    here, there = f"{ranks} ranks here, memory enough: an epoch, s", f"{MACHINES} machines: computing, s"
    heads = ["", here, "all ranks, GB", there, "exchange, s", "a machine, GB"]
    return _table(heads, rows)


def render(runs: Mapping[str, Sequence[Run]], last: Record) -> str:
    """Return the page."""
    every = [run for own in runs.values() for run in own]
    largest, info, where = max(every, key=lambda run: run.entries), published()[TARGET].info, last.environment
    cut = Line(*zip(*sorted({float(run.entries): run.partition_s for run in every}.items()), strict=True))
    here, there = boundary_of(TARGET, largest.ranks), boundary_of(TARGET, MACHINES)
    once = {name: own for name, own in runs.items() if any(run.once_s for run in own)}
    assert here
    assert there
    return PAGE.format(
        target=TARGET,
        nodes=_short(largest.nodes / 1e6),
        entries=_short(largest.entries / 1e6),
        ranks=largest.ranks,
        machine=f"{where['cpu']}, {where['memory_bytes'] / GB:.3g} GB",
        cores=counted_units(where["usable_cores"], "core"),
        large=LARGE,
        a_node=info.edges / info.nodes,
        a_node_here=largest.entries / largest.nodes,
        epochs="\n".join(_by_entries(runs, "an epoch, s", lambda run: run.epoch_s)),
        memory="\n".join(_by_entries(runs, "all ranks, GB", lambda run: run.memory / GB, "a 100 million more")),
        scores="\n".join(_by_entries(runs, "exact scores, s", lambda run: run.score_s)),
        stored=_short(largest.nodes * info.features * FEATURE_BYTES / GB),
        once="\n".join(_by_entries(once, "aggregated once, s", lambda run: run.once_s)),
        asked="\n".join(_by_entries(runs, "files, GB an epoch", lambda run: run.asked / GB)),
        cut_s=_short(cut.values[-1]),
        cut_slope=cut.slope,
        boundary=largest.boundary,
        boundary_here=here[0],
        boundary_there=there[0],
        source=there[2],
        billions=info.edges / 1e9,
        times=info.edges / largest.entries,
        machines=MACHINES,
        share=info.edges / MACHINES / 1e6,
        share_here=largest.entries / largest.ranks / 1e6,
        beyond="\n".join(_beyond(runs)),
        features=info.nodes * info.features * FEATURE_BYTES / GB,
        cut_h=_short(cut.at(info.edges) / 3600),
    )


def write(results: Path, docs: Path) -> list[Path]:
    """Write the page and its picture; return both."""
    runs, last = read(results)
    colours = {each.config["method"]["name"]: each.declared["colour"] for each in map(read_at, records_under(results))}
    page, image = docs / "large.md", docs / "images" / "large.svg"
    image.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(runs, last))
    image.write_bytes(draw(picture(runs, colours))["svg"])
    return [page, image]


if __name__ == "__main__":
    results, *others = map(Path, sys.argv[1:])
    print(*write(results, *(others or [Path("docs")])))
