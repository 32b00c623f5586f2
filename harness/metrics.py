"""The one table of metrics: what each number of a trial is, and what may be done with it.

A rank reports numbers of itself and of its epochs; a record keeps the trial's, reduced over both. Whoever
reduces, tabulates, compares or explains a metric reads it here. Methods and plugins add their own.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Literal, get_args

from harness.errors import UserError, nearest
from harness.registry import Registered, Registry

Phase = Literal[
    "sample",
    "fetch",
    "forward",
    "backward",
    "compress",
    "comm",
    "wait",
    "reduce",
    "optimize",
    "explain",
    "swap",
    "check",
    "other",
]
PHASES: tuple[str, ...] = get_args(Phase)
HOST_PHASES = ("sample", "fetch", "explain")
"""Phases whose work is, on a GPU too, the host's in part or whole."""
BOUNDED = ("fetch", "forward", "backward", "comm", "reduce")
"""Phases of which a machine's rates say how long they take at least."""
Purpose = Literal["feature", "embedding", "gradient", "model", "control", "swap", "disk"]
PURPOSES: tuple[str, ...] = get_args(Purpose)
WITHIN = ("swap", "disk")
"""Purposes of what stays on a rank's machine: copies between host and device, and what is read from a disk."""
SUMS = {  # what BNS-GCN and the papers after it report, as sums of phases
    "compute": ("sample", "fetch", "forward", "backward", "compress", "optimize", "explain", "check", "other"),
    "communication": ("comm", "swap"),
    "wait": ("wait",),
    "reduce": ("reduce",),
}

Better = Literal["less", "more"]
Ranks = Literal["", "sum", "mean", "max", "largest / mean", "largest known", "devices", "slowest"]
"""How ranks' values become one: "largest known" of those that have one, "devices": a sum over those that report
of a device, "slowest": that of the rank with the longest median epoch."""
Epochs = Literal["", "all", "timed", "plain", "phased"]
"""Epochs whose mean is taken: all, those after warm-up, of these those without barriers, or those with."""

OF_CONFIG = ("parts", "seed", "repeat")  # numbers that are no results
COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
STAT = "stat_"  # what the columns of a method's own metrics begin with


@dataclass(frozen=True)
class Formula:
    """The sum of some columns, divided by the sum of others if there are any.

    Columns are those of `load_results`, `stat_<name>` for the method's own among them: means over the epochs
    after warm-up of the sum over ranks, so that the quotient of two of them is that of their totals.
    """

    columns: tuple[str, ...]
    per: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Formula:
        """Read `a`, `a + b` or `a + b / c + d`, where the sums are taken first; ValueError for anything else."""
        sides = [[name.strip() for name in side.split("+")] for side in text.split("/")]
        if len(sides) > 2 or not all(COLUMN.fullmatch(name) for side in sides for name in side):
            raise ValueError(
                f"'{text}' is not understood: write a column, a sum `a + b`, or sums divided `a + b / c + d`"
            )
        return cls(tuple(sides[0]), tuple(sides[1]) if len(sides) == 2 else ())

    def lacking(self, row: Mapping[str, Any]) -> list[str]:
        """Return the columns that a row has no number for."""
        return [name for name in (*self.columns, *self.per) if (v := row.get(name)) is None or not math.isfinite(v)]

    def value(self, row: Mapping[str, Any]) -> float | None:
        """Return the value in a row; None where a number is missing, or the divisor is 0."""
        if self.lacking(row):
            return None
        above = float(sum(row[name] for name in self.columns))
        below = float(sum(row[name] for name in self.per)) if self.per else 1.0
        return above / below if below else None


@dataclass(frozen=True)
class Metric(Registered):
    """A number of a trial.

    A metric of a method's own is reported with its steps: `Metric.of_method("kept_boundary", ...)`. One
    that follows from a trial's others has a formula: `Metric("...", formula="bytes_feature / epoch_time_s")`.
    """

    kind = "metric"
    group = "harness.metrics"
    name: str  # the column of `load_results`; `*` stands for numbers, of a family of metrics
    doc: str = ""  # what it is, for docs/measurements.md
    unit: str = ""  # of a value; "" of a count, "fraction", "s", "B", "J", "W", "s/epoch", "B/epoch", "J/epoch", ...
    heading: str = ""  # what tables and axes call it; the default is the name in words
    better: Better | None = None  # which direction is; None where nothing says so
    value: Literal["number", "words"] = "number"  # words are never averaged
    # ranks, epochs: how the trial's value follows from the ranks' and their epochs'
    ranks: Ranks = ""
    epochs: Epochs = ""
    # where a rank reports it: "epochs.KEY", "stats.KEY", "setup.KEY", "meters.KEY", "summary.KEY" or "KEY"; "" of what
    # `results.reduce` works out by itself, or the record has
    key: str = ""
    formula: str = ""  # sums of metrics, divided by such: "a + b / c + d", the sums are taken first
    epoch_doc: str = ""  # what it is in `load_epochs`; "" if it is no column there
    family: str = ""  # how the documentation names several that it explains together, `time_PHASE_s`
    machine: bool = False  # it says something of the machine too, and is compared between runs on machines alike only
    exact: bool = False  # the same code gives the same value, bit for bit
    by_epoch: bool = False  # the time of an epoch decides it, so that epochs show its uncertainty

    @classmethod
    def of_method(cls, name: str, doc: str, unit: str = "", **others: Any) -> Metric:
        """Return a metric that a method reports by `name` with its steps (`Step.stats`).

        A step's values are summed over an epoch; of the epochs after warm-up the mean of the sum over ranks
        is taken. Its column is `stat_NAME`.
        """
        key = f"stats.{name}"
        return cls(STAT + name, doc, unit, ranks="sum", epochs="timed", key=key, epoch_doc=doc, **others)

    @classmethod
    def of_setup(cls, name: str, doc: str, unit: str = "", **others: Any) -> Metric:
        """Return a metric that a method's `setup_metrics` reports by `name`: the largest of the ranks'."""
        return cls(name, doc, unit, ranks="largest known", key=f"setup.{name}", **others)

    @property
    def title(self) -> str:
        """What tables and axes call it."""
        if self.heading:
            return self.heading
        words = self.name.removeprefix(STAT).removesuffix("_s").removesuffix("_bytes").replace("_", " ")
        return words[:1].upper() + words[1:]

    @property
    def difference(self) -> bool:
        """Whether changes of it are differences, not ratios."""
        return self.unit == "fraction" and self.better == "more"

    def word(self, change: float) -> str:
        """Return what to call a change; negative is less."""
        words = ("faster", "slower") if self.unit in ("s", "s/epoch") else ("less", "more")
        if self.name.startswith("time_to_target"):
            words = ("sooner", "later")
        if self.better != "less":
            rising = ("worse", "better") if self.difference else ("slower", "faster")
            words = rising if self.better else ("lower", "higher")
        return words[change > 0]

    def worse(self, change: float) -> bool:
        """Return whether a change is for the worse; never where nothing says which way is better."""
        return change > 0 if self.better == "less" else self.better == "more" and change < 0


REGISTERED: Registry[Metric] = Registry(Metric, __name__)


_words_of = partial(Metric, value="words")


def _score(name: str, doc: str, heading: str, **others: Any) -> Metric:
    return Metric(name, doc, "fraction", heading, "more", **others)


def _time(name: str, doc: str, heading: str = "", unit: str = "s", **others: Any) -> Metric:
    return Metric(name, doc, unit, heading, "less", machine=True, **others)


def _memory(name: str, doc: str, heading: str = "", **others: Any) -> Metric:
    return Metric(name, doc, "B", heading, "less", **others)


# fmt: off
def _table() -> Iterable[Metric]:
    """Yield the tool's own metrics, in the order of the columns."""
    where = "ranks; name; the network's label, `none` for the loopback; seed; which of its repeats; `cpu` or `cuda`"
    for names, doc in (
        (("suite", "trial", "label"), "suite, id, one line for people"),
        (("dataset", "dataset_note", "origin"), "name; its note; `real`, `generated` or `twin`"),
        (("model", "method", "options"), "names; the method's options, complete (dict)"),
        (("parts", "partitioner", "network", "seed", "repeat", "device"), where),
        (("status", "reason"), "how it ended (README, Statuses); why it is not ok"),
    ):
        for name in names:
            said = "`epoch` from 0" if name in ("suite", "trial") else ""
            yield Metric(name, doc, value="number" if name in OF_CONFIG else "words", epoch_doc=said)
    yield _words_of("flags", "what its numbers may hide, `KEY: what` each (docs/integrity.md)")
    yield _time("epoch_time_s", "median over the epochs after warm-up, those with barriers left out, of the slowest "
        "rank's time of that epoch", by_epoch=True, epoch_doc="of this rank in this epoch; the phases add up to the "
        "epoch")
    yield Metric("epochs", "epochs trained", key="summary.epochs")
    yield Metric("throughput_epochs_s", "1 / `epoch_time_s`", "1/s", "Epochs per second", "more", machine=True,
        by_epoch=True)
    best = ("best validation score over the evaluations; test score of that evaluation (the first, if several are "
        "best); none with `train: {eval_every: 0, final_eval: false}`")
    yield _score("best_val", best, "Best validation score", key="summary.best_val")
    yield _score("test_at_best_val", best, "Test score", key="summary.test_at_best_val")
    yield _time("time_to_target_s", "training time (evaluations excluded, warm-up and `precompute_s` included) until "
        "`train.target` was reached, of each epoch the slowest rank's")
    yield _time("precompute_s", "part of the set-up in which features are aggregated for all epochs (`precompute`, "
        "`sign`, `vrgcn`); largest of the ranks", "Precomputation", epoch_doc="before the first epoch")
    prepared = ("`setup_s` and what the making of what it found ready-made took (the partition; `result.found` in the "
        "record); that and the epochs of `time_to_target_s`. None where a making's time is not known")
    yield _time("time_to_target_with_setup_s", prepared, "Time to target with set-up")
    yield _time("prepared_s", prepared, "Set-up and what it found")
    for phase in PHASES:
        yield _time(f"time_{phase}_s", "mean over the epochs after warm-up (with `timing: breakdown`: over those with "
            "barriers), of one rank: the slowest, by median. They add up to its mean epoch. None with `timing: wall`",
            phase, "s/epoch", family="time_PHASE_s", ranks="slowest", epochs="phased", epoch_doc="of this rank in this "
            "epoch; the phases add up to the epoch")
    least = ("how long the phase takes at least at the rates of the machine (`harness doctor --bench`, once for each "
        "machine), of the same rank and epochs: dense products and rows read of the model's passes, input rows read "
        "and written, bytes sent. None where they were not measured, on a GPU, and in float64")
    yield from (
        _time(f"least_{phase}_s", least, f"{phase}, least", "s/epoch", family="least_PHASE_s", ranks="slowest",
            epochs="phased", key=f"epochs.least_{phase}_s", epoch_doc="as above")
        for phase in BOUNDED
    )
    host = ("the host's wall time in these phases, of the same rank and epochs; on a GPU the phases' own are the "
        "device's")
    for phase in HOST_PHASES:
        yield _time(f"host_{phase}_s", host, f"{phase}, host", "s/epoch", ranks="slowest", epochs="phased",
            key=f"epochs.host_{phase}_s", epoch_doc="as above")
    for purpose in PURPOSES:
        yield Metric(f"bytes_{purpose}", "payload sent, summed over ranks, mean over all epochs", "B/epoch", purpose,
            "less", family="bytes_PURPOSE", ranks="sum", epochs="all", exact=True, epoch_doc="sent by this rank in "
            "this epoch")
    yield _memory("peak_memory_bytes", "largest of the ranks; where it was read")
    yield _words_of("peak_memory_source", "largest of the ranks; where it was read")
    base = ("of that rank: what interpreter and libraries hold before it reads any data, by the same source; the peak "
        "above that")
    yield _memory("base_memory_bytes", base, "Memory before data")
    yield _memory("peak_above_base_bytes", base)
    yield _memory("mapped_bytes", "of that rank: pages of mapped files (data set, partition) among the latter, as the "
        "training ends. They are page cache, which ranks of a machine share; none on a GPU", "Mapped files")
    sizes = "sums over ranks, of the graph that is trained on"
    yield Metric("boundary_nodes", sizes, ranks="sum", key="boundary", exact=True)
    yield Metric("inner_nodes", sizes, ranks="sum", key="inner", exact=True)
    yield Metric("boundary_imbalance", "largest / mean of the ranks' boundary nodes, of the graph that is trained on",
        ranks="largest / mean", key="boundary", exact=True)
    yield Metric("imbalance", "largest / mean of the ranks' median epoch times")
    yield _time("wall_s", "from the start of the ranks to the end of the last", "Wall time")
    yield _time("setup_s", "reading partition and features, building the model, `precompute`, counting subgraphs; "
        "largest of the ranks", "Set-up", ranks="max", key="setup_s")
    yield _time("compile_s", "behind the set-up: kernels compiled or loaded, connections, first calls, the method made "
        "again, so that no epoch has anything of it; largest of the ranks", "First use", ranks="max", key="compile_s")
    outside = "payload sent in set-up and in evaluations and checks, summed over ranks, of the whole trial"
    yield Metric("setup_bytes", outside, "B", "Bytes of set-up", "less", exact=True)
    yield Metric("eval_bytes", outside, "B", "Bytes of evaluations", "less", exact=True)
    yield _time("background_cpu_s", "CPU seconds of background threads (draws, fetches, transfers, explanations) of "
        "the whole trial, not of threads that they share products with; largest of the ranks", "Background threads")
    yield _words_of("started", "ISO 8601, UTC")
    interval = "95 % bootstrap interval of that median"
    yield _time("epoch_time_low_s", interval, "Epoch time, lower end")
    yield _time("epoch_time_high_s", interval, "Epoch time, upper end")
    yield _words_of("noisy", "the interval is wider than 5 % of the median", unit="bool")
    last = "scores after the last epoch"
    yield _score("final_val", last, "Last validation score", key="summary.final_val")
    yield _score("final_test", last, "Last test score", key="summary.final_test")
    yield _words_of("timing", "`plain`, `breakdown`, `wall` or `off`", epoch_doc="how this epoch was timed; barriers "
        "waited at")
    behind = "epochs behind the median; fewer than 6 (no 95 % interval of a median exists then)"
    yield Metric("timed_epochs", behind)
    yield _words_of("too_short", behind, unit="bool")
    yield Metric("residue", "largest over ranks: share of the mean epoch that no named phase covers, `other` included",
        "fraction")
    yield Metric("barrier_cost", "median epoch with barriers / median epoch without, - 1", "fraction")
    overlap = ("time in which exchanges were under way; time the trainer waited for them (= phase `comm`). They differ "
        "where transfers go on in the background")
    for name, heading in (("busy", "Busy"), ("exposed", "Exposed")):
        yield _time(f"comm_{name}_s", overlap, heading, "s/epoch", ranks="slowest", epochs="phased",
            key=f"epochs.comm_{name}_s", epoch_doc="as above")
    sums = "what the papers print, as sums of phases: " + "; ".join(", ".join(phases) for phases in SUMS.values())
    for name in SUMS:
        yield _time(f"sum_{name}_s", sums, name, "s/epoch")
    yield Metric("foreign_share", "share of the rank's cores that other processes and the machine's host took, mean "
        "over timed epochs; largest of the ranks", "fraction", "Other load", "less", machine=True, ranks="max",
        epochs="plain", key="epochs.foreign_share", epoch_doc="in the windows of half a second that it lies in, of the "
        "cores of this rank and those that share them; an epoch above 0.1 counts as loaded")
    yield Metric("cpu_utilisation", "CPU seconds a second of a rank, all its threads; mean over ranks", "cores", "CPU")
    use = "of this epoch; of ranks that share a device one reports it"
    yield Metric("gpu_utilisation", "share of time with a kernel running (NVML averages over 1/6 to 1 s), mean of the "
        "samples in timed epochs, mean over ranks", "fraction", "GPU utilisation", ranks="mean", epochs="plain",
        key="epochs.gpu_utilisation", epoch_doc=use)
    yield Metric("gpu_power_w", "mean of the samples in timed epochs, summed over GPUs; of the whole GPU, by any "
        "process", "W", "GPU power", ranks="devices", epochs="plain", key="epochs.gpu_power_w", epoch_doc=use)
    yield Metric("gpu_clock_mhz", "clock of the multiprocessors, mean of the samples in epochs, mean over ranks", "MHz",
        "GPU clock", "more", machine=True, ranks="mean", key="meters.gpu_clock_mhz")
    yield Metric("gpu_slowed_share", "share of the samples in epochs in which the driver held the GPU's clock down "
        "(power cap, heat, ...); largest of the ranks", "fraction", "GPU slowed", "less", machine=True, ranks="max",
        key="meters.gpu_slowed_share")
    yield Metric("energy_gpu_j", "difference of the driver's energy counter over an epoch, mean over timed epochs, "
        "summed over GPUs", "J/epoch", "GPU energy", "less", machine=True, ranks="devices", epochs="plain",
        key="epochs.energy_gpu_j", epoch_doc=use)
    yield Metric("energy_cpu_j", "the same of all processor packages (RAPL) of each machine, other processes included, "
        "DRAM not; needs readable `/sys/class/powercap/intel-rapl:*/energy_uj` (mostly root)", "J/epoch", "CPU energy",
        "less", machine=True, ranks="devices", epochs="plain", key="epochs.energy_cpu_j", epoch_doc=use)
    for name, heading, doc in (
        ("peak_rss_bytes", "Peak RSS", "largest of the ranks: the kernel's peak resident set (VmHWM), interpreter and "
            "libraries included, evaluations left out"),
        ("peak_pss_bytes", "Peak PSS", "largest of the ranks: proportional set (a page shared by n processes counts "
            "1/n), read each 2 s (less often for large processes; `pss_interval_s` in the record) and at the end. A "
            "peak between two readings is missed"),
        ("nvml_peak_bytes", "NVML", "largest of the ranks: GPU memory of the process as the driver counts it, sampled "
            "each 0.1 s: tensors, what the allocator keeps, context, libraries"),
        ("nvml_device_peak_bytes", "NVML, whole GPU", "largest of the GPUs: memory in use by any process, sampled each "
            "0.1 s; reported where the driver does not list processes, as in many containers"),
        ("allocator_peak_bytes", "CUDA allocator", "largest of the ranks: the most that torch's CUDA allocator had "
            "handed out: tensors alone"),
    ):
        yield _memory(name, doc, heading, ranks="max", key=f"meters.{name}")
    yield _memory("memory_model_bytes", "what the method's memory model says of the rank that needs most; its "
        "components in `result.memory_model` of the record")
    yield Metric("wire_estimate_bytes", "payload with the headers of full frames; none on the loopback", "B/epoch",
        "With headers", "less")
    seen = "what the interfaces sent, summed over them (`traffic: verify`); its ratio to what was counted"
    yield Metric("wire_bytes", seen, "B/epoch", "Interfaces", "less")
    yield Metric("wire_ratio", seen, heading="Interfaces / counted")
    yield _time("eval_s", "all evaluations; largest of the ranks; 0 where there are none", "Evaluations", ranks="max",
        key="eval_s", epoch_doc="the evaluation behind this epoch; 0 where none")
    yield Metric("edges", sizes, ranks="sum", key="edges", exact=True)
    yield _score("sampled_test_at_best_val", "test score by the method's own sampler, of the evaluation with the best "
        "exact validation score (`train.sampled_eval`)", "Sampled test score", key="summary.sampled_test_at_best_val")
    yield Metric("train_nodes_per_s", "training nodes of all ranks / `epoch_time_s` (papers: Knodes/s are thousands of "
        "it)", "1/s", "Training nodes per second", "more", machine=True, by_epoch=True)
    steps = ("updates of the weights in an epoch; median over the same epochs as `epoch_time_s` of the slowest rank's "
        "time / them")
    yield Metric("steps", steps, epoch_doc="updates of the weights")
    yield Metric("trained_rows", "rows that the losses of an epoch read, summed over ranks, mean over all epochs",
        heading="Rows learnt from", ranks="sum", epochs="all", key="epochs.trained_rows", epoch_doc="of this rank")
    yield _time("between_s", "from an epoch to the next, without evaluations, checks and checkpoints; mean over all "
        "epochs, largest of the ranks", "Between epochs", "s/epoch", ranks="max", epochs="all",
        key="epochs.between_s", epoch_doc="of this rank, before this epoch")
    yield _time("step_time_s", steps, "Time of a step")
    yield _time("reference_s", "what the reference workload took on the machine, nearest to the trial's middle",
        "Reference workload")
    used = ("CPU seconds from the end of the set-up, summed over ranks: of the trainer's thread; of libraries' threads "
        "(gloo, OpenMP) and the harness's own; of the method's; of the method's in evaluations, which are in no other")
    threads = {"main": "Trainer", "library": "Libraries", "method": "Method's threads",
        "eval_method": "Method's threads in evaluations"}
    for name, heading in threads.items():
        yield Metric(f"{name}_cpu_s", used, "s", f"{heading}, CPU", ranks="sum", key=f"usage.{name}_cpu_s")
    yield Metric("children_cpu_s", "CPU seconds of processes that ranks started, from the end of the set-up", "s",
        "Child processes, CPU", ranks="sum", key="usage.children_cpu_s")
    sent = ("what all TCP sockets of the ranks sent since the set-up, evaluations included, / what was counted; the "
        "same of interfaces that carry one rank's traffic alone (headers included)")
    yield Metric("socket_ratio", sent, heading="Sockets / counted")
    yield Metric("interface_ratio", sent, heading="Own interfaces / counted")

# fmt: on


METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _table()}
"""The tool's own metrics of a trial by name, in the order of the columns of `load_results`."""


def find_metric(name: str, declared: Iterable[Metric] = ()) -> Metric:
    """Return what is known of a column of `load_results`, of methods that declare metrics; UserError if no number."""
    own = {metric.name: metric for metric in (*METRICS.values(), *installed(), *declared)}
    known = [m.name for m in own.values() if m.value == "number" and m.name not in OF_CONFIG]
    if name in known:
        return own[name]
    for metric in own.values():
        if "*" in metric.name and fnmatch.fnmatchcase(name, metric.name):
            return metric
    if name.startswith(STAT):
        return Metric.of_method(name.removeprefix(STAT), "a method's own")
    if name.startswith("time_") and name.endswith("_s"):  # a phase of a plugin's
        return _time(name, "a phase of an epoch", unit="s/epoch")
    fix = nearest(name, known)
    if fix.startswith("known: ") or _SCORES.intersection(name.casefold().split("_")):
        meant = _meant(name, [own[each] for each in known])
        fix = f"did you mean {' or '.join(map(repr, meant))}?" if meant else "docs/measurements.md has all"
    raise UserError(f"'{name}' is no metric of a trial", fix=fix)


_SCORES = {"accuracy", "acc", "f1", "microf1", "macrof1"}  # what a score may be, which no column's name says


def _meant(name: str, known: Iterable[Metric]) -> list[str]:
    """Return at most three columns whose names or headings have all words of a name."""
    words = ["score" if word in _SCORES else word for word in re.findall(r"[a-z0-9]+", name.casefold())]
    texts = {metric.name: f"{metric.name} {metric.title}".casefold() for metric in known}
    return [column for column, text in texts.items() if words and all(word in text for word in words)][:3]


def installed() -> list[Metric]:
    """Return the metrics of installed packages; those that do not import are left out."""
    found = (REGISTERED.loaded(name) for name in REGISTERED.names())
    return [metric for metric in found if metric is not None]


def as_declared(metrics: Iterable[Metric]) -> list[dict[str, Any]]:
    """Return metrics as a record keeps them: what differs from the defaults."""
    default = asdict(Metric(""))
    return [{key: value for key, value in asdict(metric).items() if value != default[key]} for metric in metrics]


def from_declared(kept: Iterable[Mapping[str, Any]]) -> list[Metric]:
    """Return what `as_declared` kept; of a newer harness's metrics what this one knows."""
    known = {field.name for field in fields(Metric)}
    return [Metric(**{k: v for k, v in each.items() if k in known}) for each in kept if "name" in each]
