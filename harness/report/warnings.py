"""Warnings to a reader of the numbers: environment, data, failures, timings that are not to be trusted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.data.partition import boundary_warning
from harness.errors import one_line
from harness.report.sections import Section
from harness.report.table import Cell, Group, Row, Table
from harness.report.values import values_of
from harness.report.variants import Variant
from harness.report.views.sampling import full_of, sent_by_sampled
from harness.results.censored import equal_settings
from harness.results.frames import RecordKey, ResultInputs
from harness.results.record import flatten
from harness.results.stats import ENOUGH, MISSING, NOISY, byte_unit, join_unique, significant, text, trials
from harness.spec import PartitionSpec

SEEDS = 3  # from so many on their deviation shows how sure a mean time is, whatever a trial's epochs do
CLOSURE = 0.02  # share of a mean epoch that no named phase may cover


@dataclass(frozen=True)
class Flag:
    """Something wrong with a trial's timing.

    `chosen`: whether it holds, for each trial of a frame; `detail`: how bad it is in those.
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


FLAGS = (  # the last one: what records are flagged with
    Flag(
        "†", "Too short",
        f"fewer than {ENOUGH} timed epochs after warm-up, too few for a 95 % interval of their median",
        lambda frame: frame["too_short"].eq(True), lambda bad: f"{bad['timed_epochs'].min():.0f}",
    ),
    Flag(
        "‡", "Noisy timing",
        f"95 % bootstrap interval of the median epoch time wider than {NOISY:.0%} of it, and fewer than {SEEDS} seeds, "
        "whose deviation would show it".replace("%", " %"),
        lambda of: of["noisy"].eq(True) & (of.groupby(["variant", "parts"])["trial"].transform("size") < SEEDS),
        lambda bad: _worst((bad["epoch_time_high_s"] - bad["epoch_time_low_s"]) / bad["epoch_time_s"]),
    ),
    Flag(
        "§", "Phases do not add up",
        f"more than {CLOSURE:.0%} of a rank's mean epoch is in no named phase".replace("%", " %"),
        lambda frame: frame["residue"] > CLOSURE, lambda bad: _worst(bad["residue"]),
    ),
    Flag(
        "¤", "Ranks share cores", "more ranks, times threads, than cores: their times do not carry over to a cluster",
        lambda frame: frame.reindex(columns=["crowded"])["crowded"].eq(True),
        lambda bad: f"{bad['parts'].max():.0f} ranks",
    ),
    Flag(
        "¶", "Flagged", "the trial did something that its numbers do not show (docs/integrity.md)",
        lambda frame: frame["flags"].ne(""), lambda bad: join_unique("; ".join(bad["flags"]).split("; ")),
    ),
)  # fmt: skip


def _worst(shares: pd.Series[float]) -> str:
    return f"{100 * shares.max():.1f} %"


def flag_marks(section: Section, variant: Variant, parts: int) -> str:
    """Return the marks of the flags that hold for any seed of a variant."""
    trials = section.select(variant, parts)
    return "".join(flag.mark for flag in FLAGS if flag.chosen(trials).any())


def explain_flags(section: Section) -> str:
    """Say what the marks in a section's table mean, "" if there are none."""
    used = [f"{flag.mark} {flag.rule}" for flag in FLAGS if flag.chosen(section.ok).any()]
    return f" Of at least one seed: {'; '.join(used)}." if used else ""


_LABELS = {
    "gpu": "GPU", "gpus": "GPU", "driver": "GPU driver", "cuda": "CUDA", "nccl": "NCCL",
    "cpu": "CPU", "cores": "CPU cores", "logical_cores": "logical cores",
    "dirty": "uncommitted changes", "omp_num_threads": "OMP_NUM_THREADS", "threads": "threads a rank",
}  # fmt: skip
REFERENCE = "reference_s"
HARDWARE = ("cpu", "cores", "gpus")  # of the environment: what times depend on
REMOTE = "stat_remote_nodes"
PROMISED = 0.1  # share of the bytes of the baseline beyond the share of edges from which a note says so


@dataclass(frozen=True)
class Note:
    """A warning: a bold lead and the rest of the sentence."""

    lead: str
    text: str


def environment_rows(inputs: ResultInputs) -> list[tuple[str, str]]:
    """Return (name, value) of everything the records say of where they ran; different values next to each other."""
    environments = _environments(inputs)
    rows = [(_name(key), " / ".join(dict.fromkeys(_show(key, v) for v in own))) for key, own in environments.items()]
    if speeds := sorted(s for record in inputs.records.values() if (s := record.environment.get(REFERENCE))):
        ends = dict.fromkeys(significant(1000 * seconds) for seconds in (speeds[0], speeds[-1]))
        rows.append(("Reference workload", f"{' to '.join(ends)} ms"))
    started = inputs.results["started"].dropna().astype(str)
    if len(started):
        first, last = started.min(), started.max()
        rows.append(("Trials started", first if first == last else f"{first} to {last}"))
    return rows


def _environments(inputs: ResultInputs) -> dict[str, list[Any]]:
    """Return what the records' environments say by key; lists of mappings (one a GPU, say) as numbered entries."""
    values: dict[str, list[Any]] = {}
    for record in inputs.records.values():
        for key, value in record.environment.items():
            if key in (REFERENCE, "reference_cores"):  # differs from trial to trial
                continue
            if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
                value = dict(enumerate(value))
            for name, own in flatten({key: None if value == {} else value}).items():
                values.setdefault(name, []).append(own)
    return values


def _name(key: str) -> str:
    words = key.removeprefix("packages.").removeprefix("versions.").replace("_bytes", "").split(".")
    return " ".join(_LABELS.get(word, word.replace("_", " ")) for word in words)


def _show(key: str, value: object) -> str:
    if value is None or value == []:
        return "none" if "gpu" in key.lower() else MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and isinstance(value, int | float):
        size, unit = byte_unit(value)
        return f"{significant(value / size)} {unit}"
    if isinstance(value, list):
        return ", ".join(text(item) for item in value)
    return text(value)


def make_notes(inputs: ResultInputs, sections: list[Section]) -> list[Note]:
    """Return the warnings, the gravest first."""
    notes = [
        *_status_notes(inputs), *_data_notes(sections), *_machine_notes(inputs, sections), *_flag_notes(sections),
    ]  # fmt: skip
    return [
        *notes, *_boundary_notes(inputs, sections), *_sampling_notes(sections), *_topology_notes(sections),
        *_method_warnings(inputs), *_environment_notes(inputs), *_reference_notes(inputs),
    ]  # fmt: skip


def _status_notes(inputs: ResultInputs) -> Iterable[Note]:
    results = (inputs.whole or inputs).results
    bad = results[results["status"] != "ok"]["status"].value_counts()
    if len(bad):
        listed = ", ".join(f"{count} {status}" for status, count in bad.items())
        yield Note(
            f"{int(bad.sum())} of {trials(len(results))} did not end well",
            f"({listed}); their values are left out of every mean. The reasons are in the table below.",
        )
    else:
        yield Note("All trials ended well", f"({trials(len(results))}).")
    if "runs" in results:
        number = len(inputs.runs[["suite", "trial"]].drop_duplicates())
        yield Note(
            f"Repeats: {trials(number)} ran {len(inputs.runs)} times.",
            "Numbers are means over a trial's runs that ended well; epochs, figures by rank and of networks are those "
            "of the first.",
        )
    if inputs.earlier:
        yield Note(f"Of an earlier search of the settings: {trials(inputs.earlier)}.", "They are not shown.")
    if inputs.repeated:
        yield Note(
            f"In several of the directories: {trials(inputs.repeated)}.", "Shown is the one that started last of each."
        )


def _data_notes(sections: list[Section]) -> Iterable[Note]:
    badges = list(dict.fromkeys(f"{section.dataset} [{section.badge}]" for section in sections if section.badge))
    if badges:
        yield Note(
            "Not the published data:",
            "; ".join(badges) + ". Times and scores on generated data do not carry over to the real set.",
        )


def _machine_notes(inputs: ResultInputs, sections: list[Section]) -> Iterable[Note]:
    """Say where trials in one table ran on processors or GPUs of several kinds."""
    mixed = []
    for section in sections:
        records = filter(None, map(inputs.record, section.ok.to_dict("records")))
        kinds = {text([record.environment.get(key) for key in HARDWARE]) for record in records}
        if len(kinds) > 1:
            mixed.append(section.title)
    if mixed:
        lead = "Machines of several kinds:"
        yield Note(lead, f"{'; '.join(mixed)}. Their times are not comparable; bytes and scores are.")


def _flag_notes(sections: list[Section]) -> Iterable[Note]:
    for flag in FLAGS:
        if wheres := [where for section in sections if (where := flag.where(section))]:
            bad = (section.ok[flag.chosen(section.ok)] for section in sections)
            count = len({(row.suite, row.trial) for frame in bad for row in frame.itertuples()})
            yield Note(f"{flag.lead}: {trials(count)}", f"({flag.mark}; {flag.rule}). {'; '.join(wheres)}.")


def _boundary_notes(inputs: ResultInputs, sections: list[Section]) -> Iterable[Note]:
    """Name the partitions in which one part's boundary is much larger than the others'."""
    found = {}
    for section in sections:
        known = section.ok.dropna(subset=["boundary_imbalance"]).sort_values("boundary_imbalance")
        for row in known.drop_duplicates("parts", keep="last").sort_values("parts").to_dict("records"):
            spec = PartitionSpec.model_construct(**inputs.config(row).get("partition", {}))
            found[boundary_warning(section.title, spec, row["boundary_imbalance"])] = True
    if listed := "; ".join(filter(None, found)):
        yield Note("Unbalanced boundaries:", f"{listed}.")


def _sampling_notes(sections: list[Section]) -> Iterable[Note]:
    """Name of each section the trials in which sampling edges saves least of what its share of edges promises."""
    found = []
    for section in sections:
        halo, edges = values_of(section, "halo_bytes"), values_of(section, "edge_share")
        sent = {key: halo[key] for key in sent_by_sampled(section)}
        gaps = {
            (variant, parts): sent[variant, parts].mean / base.mean - edges[variant, parts].mean
            for variant, parts in sent
            if (variant, parts) in edges and (base := full_of(section, sent, parts))
        }
        worst = max(gaps, key=lambda key: gaps[key], default=None)
        if worst and section.baseline and gaps[worst] > PROMISED:
            share, (variant, parts) = edges[worst].mean, worst
            found.append(
                f"{section.title}: {variant.label} at P = {parts} draws {share:.1%} of the edges and sends "
                f"{share + gaps[worst]:.1%} of the halo bytes of {section.baseline.method}"
            )
    if found:
        listed = f"{'; '.join(found)}.".replace("%", " %")
        yield Note("Fewer edges are not as many fewer bytes:", listed)


def _topology_notes(sections: list[Section]) -> Iterable[Note]:
    """Name the mini-batch methods that draw other ranks' nodes from a structure that every rank maps."""
    free = {
        variant.method
        for section in sections
        for variant in section.variants
        for parts in section.parts
        if variant.family == "mini-batch" and variant.options.get("topology") != "owner"
        if section.select(variant, parts).get(REMOTE, pd.Series(dtype=float)).gt(0).any()
    }
    if free:
        yield Note(
            "Drawing from other ranks' parts is free here:",
            f"every rank of a host maps one copy of the graph's structure, so that {join_unique(sorted(free))} send "
            "features and the ids of nodes only. Where owners draw for others, as in distributed systems, targets and "
            "drawn edges are sent too, in a round of waiting a layer.",
        )


def _environment_notes(inputs: ResultInputs) -> Iterable[Note]:
    environments = _environments(inputs)
    seen = {key: {json.dumps(v, sort_keys=True, default=str) for v in own} for key, own in environments.items()}
    # Threads follow from the cores and the number of ranks.
    differing = [_name(key) for key, values in seen.items() if len(values) > 1 and key != "threads"]
    if differing:
        yield Note("Trials ran in different environments:", f"they differ in {', '.join(differing)}.")
    if any("dirty" in key and "true" in values for key, values in seen.items()):
        yield Note("Uncommitted changes:", "some trials ran from a working tree that differs from its commit.")


def _reference_notes(inputs: ResultInputs) -> Iterable[Note]:
    """Name the methods whose convergence is held against no exact training."""
    if unheld := join_unique(held.unheld for held in equal_settings(inputs.records.values())).replace("), ", "); "):
        yield Note(
            "No reference of convergence:",
            f"{unheld}. `harness run SUITE --set references=true` trains it, where options say the batch.",
        )


def unclaimed_notes(inputs: ResultInputs, known: Container[str]) -> Iterable[Note]:
    """Name the suites whose claims are unknown."""
    if unknown := [name for name in sorted(inputs.results["suite"].dropna().unique()) if name not in known]:
        yield Note(
            "Claims unknown:",
            f"no suite.json lies next to the results of {', '.join(unknown)}; `--suite FILE` names the suite.",
        )


def failure_table(sections: list[Section]) -> Table | None:
    """Return the trials that were skipped or failed, one row for those of a section that ended alike."""
    rows: list[Row] = []
    for section in sections:
        bad = section.frame[section.frame["status"] != "ok"]
        for (status, reason), group in bad.groupby(["status", bad["reason"].map(text).map(one_line)], sort=True):
            methods = [v.label for v in section.variants if v.key in set(group["variant"])]
            cells = (
                Cell(str(status), number=False),
                Cell(str(len(group))),
                Cell(join_unique(methods), number=False, wrap=True),
                Cell(join_unique(sorted(group["parts"].dropna().astype(int))), number=False),
                Cell(join_unique(sorted(group["seed"].dropna().astype(int))), number=False),
                Cell(str(reason) or MISSING, number=False, wrap=True),
            )
            rows.append(Row(section.title, cells, dataset=section.name))
    if not rows:
        return None
    heads = Group("", ("Status", "Trials", "Methods", "P", "Seeds", "Reason"))
    caption = "Status and reason as recorded; each trial's directory has the end of its log (log.txt)."
    return Table("Skipped and failed trials", caption, "Data set · model", (heads,), tuple(rows))


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def _method_warnings(inputs: ResultInputs) -> Iterable[Note]:
    """Yield what methods say of their trials' values; warnings that differ in numbers only are one.

    It names the lowest and the highest of the numbers, and how many trials it is of if not of all.
    """
    said: dict[tuple[str, str], dict[RecordKey, list[str]]] = {}
    asked = Counter(str(record.config["method"]["name"]) for record in inputs.records.values())
    for key, record in inputs.records.items():
        for warning in (str(each) for rank in record.ranks for each in rank.get("remarks") or ()):
            kind = str(record.config["method"]["name"]), _NUMBER.sub("0", warning)
            said.setdefault(kind, {}).setdefault(key, []).append(warning)
    for (method, _), found in said.items():
        warnings = [warning for own in found.values() for warning in own]
        scope = "" if len(found) == asked[method] else f" ({len(found)} of {trials(asked[method])})"
        yield Note(f"{method}:", _merge(warnings) + scope)


def _merge(warnings: list[str]) -> str:
    """Return warnings that differ in numbers only as one, with the range of each number."""
    numbers = zip(*map(_NUMBER.findall, warnings), strict=True)
    ends = [(min(found, key=float), max(found, key=float)) for found in numbers]
    ranges = iter([low if float(low) == float(high) else f"{low} to {high}" for low, high in ends])
    return _NUMBER.sub(lambda _: next(ranges), warnings[0])
