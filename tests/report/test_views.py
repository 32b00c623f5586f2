"""Scaling, peers, time to accuracy, fronts, swept options, parts: each number against the stored trials."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.fake import METHODS, write_results
from report.measured import EPOCHS, FULL, change, one_section, row, texts

from harness.report.sections import Section
from harness.report.table import Table
from harness.report.views.convergence import ConvergenceView, Reached, TargetsView, targets
from harness.report.views.leaderboard import ParetoView, front
from harness.report.views.options import OptionsView
from harness.report.views.partition import PartitionView
from harness.report.views.resources import MemoryView
from harness.report.views.sampling import CacheView
from harness.report.views.time import EpochTimeView, ScalingView
from harness.report.views.traffic import PeersView
from harness.results.frames import load_epochs, load_results
from harness.results.stats import Stat

BNS, SPARSE = METHODS[:2]
CACHED = ("skewed", {"version": "skewed", "distortion": 4, "base": "sage", "cache": "degree", "switch": True})
TARGET = 0.87  # all seeds, one of two, or none reach it
PEERS = np.array([[0, 300, 10], [40, 0, 20], [50, 60, 0]])


def talk(record: dict[str, Any]) -> None:
    """Have ranks send `PEERS` bytes an epoch, and other things that are not between two ranks."""
    for i, rank in enumerate(record["ranks"]):
        sent = {"purpose": "feature", "layer": 0, "direction": "forward", "received_bytes": 0, "calls": 1}
        rank["traffic"] = [
            {**sent, "scope": "epoch", "peer": j, "sent_bytes": int(PEERS[i, j]) * EPOCHS // 2}
            for j in range(len(record["ranks"]))
            for _ in range(2)
        ]
        others = [("eval", "feature", 1), ("epoch", "model", -1), ("epoch", "swap", -1)]
        rank["traffic"] += [
            {**sent, "scope": scope, "purpose": purpose, "peer": peer, "sent_bytes": 10**9}
            for scope, purpose, peer in others
        ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("views")
    chosen = {"methods": (FULL, BNS, SPARSE, CACHED), "parts": (1, 3), "seeds": (0, 1)}
    write_results(path, **chosen, epochs=EPOCHS, train={"target": TARGET})
    change(path, talk)
    return path


@pytest.fixture(scope="module")
def section(root: Path) -> Section:
    return one_section(root)


def label(section: Section, options: dict[str, Any]) -> str:
    return next(v.label for v in section.variants if options.items() <= v.options.items())


def cells(table: Table, name: str, heading: str) -> list[str]:
    """The texts under a heading in the rows of a name."""
    place = table.columns.index(heading)
    return [row.cells[place].text for row in table.rows if row.label == name and row.cells]


def test_bytes_from_rank_to_rank(section: Section) -> None:
    table = PeersView(section).table()
    assert table is not None
    assert table.rows[0].label == "P = 3"  # one rank has no peer
    found = row(table, "full", 3).cells
    pairs = PEERS[~np.eye(3, dtype=bool)]
    assert "(B per epoch)" in table.title
    assert [(c.text, c.note) for c in found] == [
        (f"{pairs.mean():.1f}", ""),
        ("300.0", "0 to 1"),
        (f"{300 / pairs.mean():.2f}", ""),
        (f"{310 / PEERS.sum(axis=1).mean():.2f}", "rank 0"),
        (f"{360 / PEERS.sum(axis=0).mean():.2f}", "rank 1"),
    ]


def reach(root: Path, target: float) -> dict[tuple[str, float, int], list[tuple[float, int] | None]]:
    """Seconds and epochs until each trial's score was as high, from the stored epochs, by method, rate, P."""
    rows: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for each in load_epochs(root).to_dict("records"):
        rows[each["trial"]][each["epoch"]].append(each)
    found = defaultdict(list)
    for trial in load_results(root).to_dict("records"):
        seconds, hit = 0.0, None
        for epoch, ranks in sorted(rows[trial["trial"]].items()):
            seconds += max(rank["epoch_time_s"] for rank in ranks)
            if hit is None and ranks[0]["val_score"] >= target:
                hit = seconds, epoch + 1
        found[trial["method"], trial["options"].get("rate", 1.0), int(trial["parts"])].append(hit)
    return found


def test_time_to_accuracy(root: Path, section: Section) -> None:
    table = TargetsView(section).table()
    assert table is not None
    scores = targets(section)
    assert TARGET in scores
    assert len(scores) == 4
    seen = set()
    for score in scores:
        for (method, rate, parts), hits in reach(root, score).items():
            options = {"rate": rate} if method == "bns-gcn" else {"base": "sage"} if method == "skewed" else {}
            name = "full" if method == "full" else label(section, options)
            time = row(table, name, parts).cells[table.columns.index(f"{100 * score:.1f} % Time (s)")]
            there = [hit for hit in hits if hit]
            if not there:
                assert time.text == "not reached"
                assert not time.best
                seen.add("never")
                continue
            assert float(time.text.split(" ±")[0]) == pytest.approx(
                statistics.mean(seconds for seconds, _ in there), abs=6e-3
            )
            whole = row(table, name, parts).cells[table.columns.index(f"{100 * score:.1f} % With set-up")]
            assert float(whole.text.split(" ±")[0]) == pytest.approx(float(time.text.split(" ±")[0]) + 4, abs=2e-2)
            assert time.note == ("" if len(there) == len(hits) else f"{len(there)} of {len(hits)}")
            seen.add("some" if time.note else "all")
    assert seen == {"never", "some", "all"}


def test_none_is_soonest_without_a_test(section: Section, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each number of parts' four: one fast seed of two, then 3, 2 and 2.5 seconds of both."""
    chosen = itertools.cycle([(1.0, 1), (3.0, 2), (2.0, 2), (2.5, 2)])

    def made(own: object, target: float) -> Reached:
        time, hits = next(chosen)
        return Reached(Stat(time, None, hits), Stat(5.0, None, hits), hits, 2)

    monkeypatch.setattr("harness.report.views.convergence.targets", lambda section: (0.5,))
    monkeypatch.setattr("harness.report.views.convergence.reached", made)
    keys = [(variant, parts) for parts in (1, 3) for variant in section.variants]
    monkeypatch.setattr("harness.report.views.convergence.scored_trials", lambda section: {key: [] for key in keys})
    table = TargetsView(section).table()
    assert table is not None
    assert not any(cell.best for row in table.rows for cell in row.cells)
    assert [r.cells[0].note for r in table.rows if r.cells] == 2 * ["1 of 2", "", "", ""]


def test_costs_are_of_the_whole_training(root: Path, section: Section) -> None:
    table = ParetoView(section).table()
    assert table is not None
    trials = load_results(root)
    for parts in (1, 3):
        mine = trials[(trials["method"] == "full") & (trials["parts"] == parts)]
        shown = texts(table, "full", parts)
        seconds = (mine["epoch_time_s"] * EPOCHS).mean()
        assert float(shown["Training time (s)"]) == pytest.approx(seconds, abs=6e-3)
        sent = sum(mine[f"bytes_{name}"] for name in ("feature", "embedding", "gradient", "model", "control"))
        assert float(shown["Bytes sent (MiB)"]) == pytest.approx((sent * EPOCHS).mean() / 2**20, abs=6e-2)
        assert float(shown["Peak memory (GiB)"]) == pytest.approx(mine["peak_memory_bytes"].mean() / 2**30, abs=6e-3)
    assert "bytes sent" not in texts(table, "full", 1)["On the front of"]  # nobody sends any


def test_the_front_is_what_none_beats(section: Section) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = [(float(a), float(b)) for a, b in rng.integers(0, 4, (4, 2))]
        scores = dict(zip(section.variants, (a for a, _ in values), strict=True))
        amounts = dict(zip(section.variants, (b for _, b in values), strict=True))
        expected = {
            variant
            for variant, (own, cost) in zip(section.variants, values, strict=True)
            if not any(s >= own and c <= cost and (s > own or c < cost) for s, c in values)
        }
        found = front(scores, amounts)
        assert set(found) == expected
        assert [amounts[v] for v in found] == sorted(amounts[v] for v in found)


def test_scaling_is_relative_to_the_fewest_parts(root: Path, section: Section) -> None:
    table = ScalingView(section).table()
    assert table is not None
    rates = load_results(root).query("method == 'full'").groupby("parts")["throughput_epochs_s"].mean()
    found = {row.label: row.cells for row in table.rows}["full"]
    shown = dict(zip(table.columns, (cell.text for cell in found), strict=True))
    assert float(shown["Speed-up over own fewest P (×) P = 3"]) == pytest.approx(rates[3] / rates[1], abs=6e-3)
    assert shown["Speed-up over own fewest P (×) P = 1"] == "1.00"
    assert float(shown["Efficiency (%) P = 3"]) == pytest.approx(100 * rates[3] / rates[1] / 3, abs=0.6)


def test_numeric_options_are_swept_and_switches_are_not(root: Path, section: Section) -> None:
    table = OptionsView(section).table()
    assert table is not None
    name = "rate of bns-gcn (sampler=bernoulli)" if "sampler" in label(section, BNS[1]) else "rate of bns-gcn"
    assert [r.label for r in table.rows if not r.cells] == [f"{name}, P = {parts}" for parts in (1, 3)]
    trials = load_results(root).query("method == 'bns-gcn'")
    rates = trials["options"].map(lambda options: options["rate"])
    for rate in (0.01, 0.1):
        means = trials[rates == rate].groupby("parts")["test_at_best_val"].mean()
        shown = [float(text.split(" ±")[0]) for text in cells(table, f"rate = {rate}", "Test score (%)")]
        assert shown == pytest.approx([100 * means[1], 100 * means[3]], abs=6e-3)


def test_a_switch_is_no_sweep(tmp_path: Path) -> None:
    methods = [("full", {"precompute": chosen}) for chosen in (False, True)]
    write_results(tmp_path, methods=methods, parts=(1,), seeds=(0,), epochs=6)
    assert OptionsView(one_section(tmp_path)).table() is None


def test_every_part_has_its_boundary(section: Section) -> None:
    """A part of `fake` has 20,000 / P inner nodes and 9,000 (P - 1) / P + 17 rank of boundary."""
    picture = PartitionView(section).figure()
    assert picture is not None
    rows = zip(*(picture.data[name] for name in ("series", "part", "nodes")), strict=True)
    assert {(str(kind), int(part)): float(nodes) for kind, part, nodes in rows} == {
        **{("inner nodes", i): 6_666 for i in range(3)},
        **{("boundary nodes", i): 6_000 + 17 * i for i in range(3)},
    }


def test_batches_have_a_hit_rate_too(root: Path, section: Section) -> None:
    table = CacheView(section).table()
    assert table is not None
    assert [r.label for r in table.rows] == ["P = 3", label(section, {"base": "sage"})]
    trials = load_results(root).query("method == 'skewed' and parts == 3")
    rate = 100 * (trials["stat_cached_nodes"] / trials["stat_remote_nodes"]).mean()
    assert row(table, label(section, {"base": "sage"}), 3).cells[2].text.startswith(f"{rate:.2f} ± ")


def test_figures_show_the_numbers_of_their_tables(root: Path, section: Section) -> None:
    trials = load_results(root)
    full = trials[trials["method"] == "full"].groupby("parts")
    pictures = {view.name: view(section).figure() for view in (PeersView, EpochTimeView, MemoryView, ConvergenceView)}
    data = {name: picture.data for name, picture in pictures.items() if picture}
    assert set(data) == set(pictures)
    assert all(len(frame) for frame in data.values())
    peers = data["peers"].query("method == 'full'")
    assert list(peers["B_per_epoch"]) == list(PEERS[~np.eye(3, dtype=bool)])
    less = data["memory"].dropna(subset=["Reduction against full (%)"])
    own = less[(less["series"] == label(section, SPARSE[1])) & (less["parts"] == 3)]
    mine = trials[trials["options"].map(lambda o: o.get("rate") == 0.01) & (trials["parts"] == 3)]
    reduction = 100 * (1 - mine["peak_above_base_bytes"].mean() / full["peak_above_base_bytes"].mean()[3])
    assert own["Reduction against full (%)"].item() == pytest.approx(reduction)
    faster = data["time"].dropna(subset=["Speed-up over full (×)"])
    assert set(faster.loc[faster["method"] == "full", "Speed-up over full (×)"]) == {1.0}
    sent = data["convergence"].query("method == 'full' and parts == 3")["sent_bytes"].iloc[-1]
    last = trials[(trials["method"] == "full") & (trials["parts"] == 3)].filter(like="bytes_").filter(regex="^bytes_")
    evaluated = 5 * (EPOCHS // 5)
    assert sent == pytest.approx(last.sum(axis=1).mean() * evaluated, rel=1e-6)
