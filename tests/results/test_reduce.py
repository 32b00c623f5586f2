from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.results.reduce import flags, reduce


def rank(r: int, times: list[float], **figures: Any) -> dict[str, Any]:
    epochs = [
        {
            "epoch": i,
            "rank": r,
            "epoch_time_s": t,
            "time_forward_s": 0.75 * t,
            "time_other_s": 0.25 * t,
            "bytes_embedding": 100 * (r + 1),
            "loss": 1.0,
        }
        for i, t in enumerate(times)
    ]
    summary = {"epochs": len(times), "best_val": 0.5, "test_at_best_val": 0.4, "warmup_epochs": 1}
    known = {
        "rank": r,
        "status": "ok",
        "inner": 10,
        "boundary": 3,
        "setup_s": 1.0 + r,
        "eval_s": 0.5,
        "peak_memory_bytes": 1000 * (r + 1),
        "peak_memory_source": "VmHWM",
        "summary": summary,
        "epochs": epochs,
    }
    return known | figures


def test_reduce_by_hand() -> None:
    got = reduce([rank(0, [9.0, 1.0, 2.0, 3.0]), rank(1, [9.0, 4.0, 1.0, 4.0])])
    # after the first epoch the slower ranks took 4, 2, 4 s; rank 1 has the larger median (4 against 2)
    assert got["epoch_time_s"] == 4.0
    assert got["throughput_epochs_s"] == 0.25
    assert got["rank_epoch_time_s"] == [2.0, 4.0]
    assert got["imbalance"] == pytest.approx(4 / 3)
    assert got["time_forward_s"] == pytest.approx(0.75 * 3.0)
    assert got["time_forward_s"] + got["time_other_s"] == pytest.approx(3.0)
    assert got["bytes_embedding"] == 300
    assert (got["inner_nodes"], got["boundary_nodes"]) == (20, 6)
    assert (got["setup_s"], got["eval_s"]) == (2.0, 0.5)
    assert (got["peak_memory_bytes"], got["peak_memory_source"]) == (2000, "VmHWM")
    assert (got["best_val"], got["test_at_best_val"], got["epochs"]) == (0.5, 0.4, 4)
    assert got["warmup_epochs"] == 1
    assert got["epoch_time_low_s"] <= 4.0 <= got["epoch_time_high_s"]
    assert (got["noisy"], got["too_short"], got["timed_epochs"]) == (True, True, 3)


def test_set_up_counts_what_it_found_ready_made() -> None:
    summary = rank(0, [1.0])["summary"] | {"target_epoch": 0}
    first = rank(0, [10.0], found={"partition": 5.0, "counts": 7.0}, summary=summary)
    second = rank(1, [1.0], found={"partition": 5.0})  # made the counts itself: they are in its set-up of 2 s
    got = reduce([first, second])
    assert (got["found"], got["prepared_s"], got["time_to_target_with_setup_s"]) == ({"partition": 5.0}, 7.0, 17.0)
    unknown = reduce([first | {"found": {"partition": None}}, second])
    assert (unknown["prepared_s"], unknown["time_to_target_with_setup_s"]) == (None, None)
    older = reduce([rank(0, [10.0], summary=summary)])
    assert (older["prepared_s"], older["time_to_target_with_setup_s"]) == (None, None)
    never = reduce([rank(0, [1.0], found={})])
    assert (never["prepared_s"], never["time_to_target_with_setup_s"]) == (1.0, None)


def test_what_was_computed_before_the_first_epoch_counts_as_training_and_once() -> None:
    """Of a set-up of 2 s, the slower rank's, 1.5 s."""
    ranks = [rank(0, [3.0, 2.0, 1.0], found={}), rank(1, [1.0, 4.0, 1.0], found={})]
    ranks[0]["summary"]["target_epoch"] = 1
    plain = reduce(ranks)
    assert (plain["time_to_target_s"], plain["time_to_target_with_setup_s"]) == (7.0, 9.0)
    for each, seconds in zip(ranks, (0.5, 1.5), strict=True):
        each["spans"] = {"setup": {"open": 0.1, "precompute": seconds}}
        for row in each["epochs"]:
            row["precompute_s"] = seconds if row["epoch"] == 0 else 0.0
    got = reduce(ranks)
    assert (got["precompute_s"], got["prepared_s"]) == (1.5, 2.0)
    assert (got["time_to_target_s"], got["time_to_target_with_setup_s"]) == (8.5, 9.0)
    assert got["epoch_time_s"] == plain["epoch_time_s"]


def test_seconds_and_sent_outside_epochs_are_told_by_phase() -> None:
    def sent(scope: str, purpose: str, size: int) -> dict[str, Any]:
        return {"scope": scope, "purpose": purpose, "sent_bytes": size}

    spans = {"setup": {"open": 1.0, "cache": 4.0}, "between": {"eval": 2.0}, "beside": {"draws": [9.0, 3.0]}}
    other = {"setup": {"open": 3.0}, "between": {"eval": 1.0}, "beside": {"draws": [8.0, 4.0], "fetches": [1.0, 1.0]}}
    first = [sent("setup", "feature", 10), sent("setup", "feature", 5), sent("epoch", "feature", 99)]
    second = [sent("setup", "control", 1), sent("eval", "embedding", 7), sent("compile", "model", 50)]
    got = reduce([rank(0, [1.0], spans=spans, traffic=first), rank(1, [1.0], spans=other, traffic=second)])
    assert got["spans"]["setup"] == {"open": 3.0, "cache": 4.0}
    assert got["spans"]["between"] == {"eval": 2.0}
    assert got["sent_outside"] == {
        "setup": {"feature": 15, "control": 1},
        "eval": {"embedding": 7},
        "compile": {"model": 50},
    }
    assert (got["setup_bytes"], got["eval_bytes"], got["background_cpu_s"]) == (16, 7, 5.0)
    older = reduce([rank(0, [1.0])])
    assert (older["setup_bytes"], older["eval_bytes"], older["background_cpu_s"]) == (None, None, None)


def test_flags_name_their_ranks_and_are_said_once() -> None:
    mine, both = ["cores", "2 of 1"], ["load", "half of the epochs"]
    ranks = [{"rank": 0, "flags": [both]}, {"rank": 1, "flags": [mine, both]}, {"rank": 2}]
    assert flags(ranks) == ["load: half of the epochs (ranks [0, 1])", "cores: 2 of 1 (ranks [1])"]


def test_the_time_to_a_target_is_of_each_epoch_the_slowest_ranks() -> None:
    ranks = [rank(0, [9.0, 1.0, 2.0, 3.0]), rank(1, [8.0, 4.0, 1.0, 5.0])]

    def took(target_epoch: int | None) -> float | None:
        ranks[0]["summary"]["target_epoch"] = target_epoch
        return reduce(ranks)["time_to_target_s"]

    assert (took(0), took(None)) == (9.0, None)
    assert took(2) == 9.0 + 4.0 + 2.0  # neither rank's own sum: 12 s and 13 s
    for row in (row for one in ranks for row in one["epochs"]):
        row |= {"epoch_time_s": None, "timing": "off"}
    assert took(2) is None


def test_training_nodes_a_second_are_those_of_all_ranks() -> None:
    first, second = rank(0, [9.0, 1.0, 2.0], train_nodes=6), rank(1, [9.0, 4.0, 4.0], train_nodes=10)
    assert reduce([first, second])["train_nodes_per_s"] == 16 / 4.0
    assert reduce([first, second | {"train_nodes": None}])["train_nodes_per_s"] is None
    assert reduce([first | {"epochs": []}])["train_nodes_per_s"] is None


def test_a_steps_time_is_that_of_the_slowest_rank_in_its_epoch() -> None:
    ranks = [rank(0, [9.0, 1.0, 2.0, 3.0]), rank(1, [9.0, 4.0, 1.0, 4.0])]
    assert reduce(ranks)["step_time_s"] is None  # older ranks do not tell their steps
    for one in ranks:
        for row, steps in zip(one["epochs"], (1, 2, 4, 1), strict=True):
            row["steps"] = steps
    got = reduce(ranks)  # 4 s in 2 steps, 2 s in 4, 4 s in 1
    assert (got["step_time_s"], got["steps"]) == (2.0, pytest.approx(7 / 3))


def test_figures_of_the_set_up_are_the_largest_of_the_ranks_that_have_them() -> None:
    told = [{"drawn": 5, "drawn_s": None, "by": None}, {"drawn": 7, "drawn_s": 1.5, "by": None}, {}]
    ranks = [rank(r, [1.0], setup=figures) for r, figures in enumerate(told)]
    got = reduce(ranks)
    assert (got["drawn"], got["drawn_s"], got["by"]) == (7, 1.5, None)


def told(r: int, stats: list[dict[str, Any]], **figures: Any) -> dict[str, Any]:
    report = rank(r, [1.0] * len(stats), **figures)
    for row, own in zip(report["epochs"], stats, strict=True):
        row["stats"] = own
    return report


def test_a_methods_own_figures_are_sums_over_ranks_and_means_after_warm_up() -> None:
    """One epoch of warm-up; of the others the sums are 12, 34 and 5."""
    first = told(0, [{"rows": 900}, {"rows": 2}, {"rows": 4, "how": "all"}, {"rows": 5}], edges=7)
    second = told(1, [{"rows": 900}, {"rows": 10}, {"rows": 30, "how": "all"}, {"rows": 0}], edges=8)
    for report in (first, second):  # barriers change nothing about them
        report["epochs"][2] |= {"timing": "breakdown", "barriers": 1}
    got = reduce([first, second])
    assert got["stats"] == {"rows": pytest.approx((12 + 34 + 5) / 3)}
    assert got["edges"] == 15
    assert reduce([rank(0, [1.0] * 4)])["stats"] == {}


def test_a_sum_of_stats_needs_every_rank() -> None:
    first, second = told(0, [{}, {"a": 1, "b": 1}, {"a": 3}]), told(1, [{}, {"a": 1}, {}])
    assert reduce([first, second])["stats"] == {"a": 2.0}


def test_bytes_are_means_over_all_epochs_also_those_of_warm_up() -> None:
    one = rank(0, [1.0] * 4)
    for row, sent in zip(one["epochs"], [70, 10, 10, 10], strict=True):
        row["bytes_feature"] = sent
    got = reduce([one])
    assert got["bytes_feature"] == 25
    assert "bytes_swap" not in got


def test_phases_add_up_to_the_slowest_ranks_mean_epoch() -> None:
    rng = np.random.default_rng(0)
    ranks = [rank(r, list(rng.uniform(1, 2, 30))) for r in range(4)]
    got = reduce(ranks)
    times = np.array([[e["epoch_time_s"] for e in r["epochs"]] for r in ranks])[:, 1:]
    slowest = np.argmax(np.median(times, axis=1))
    assert got["time_forward_s"] + got["time_other_s"] == pytest.approx(times[slowest].mean())
    assert got["epoch_time_s"] == pytest.approx(np.median(times.max(axis=0)))


def test_what_is_missing_is_none_never_zero() -> None:
    nothing = reduce([])
    assert nothing["epoch_time_s"] is None
    assert nothing["peak_memory_bytes"] is None
    assert nothing["boundary_nodes"] is None
    assert nothing["best_val"] is None
    partly = reduce([rank(0, [], peak_memory_bytes=None, inner=None, summary=None), rank(1, [1.0, 1.0])])
    assert partly["epoch_time_s"] is None
    assert partly["inner_nodes"] is None
    assert partly["peak_memory_bytes"] == 2000
    assert partly["best_val"] == 0.5


def test_one_epoch_is_not_all_warm_up() -> None:
    one = rank(0, [2.0])
    one["summary"]["warmup_epochs"] = None
    assert reduce([one])["epoch_time_s"] == 2.0
    one["summary"]["warmup_epochs"] = 5
    assert reduce([one])["epoch_time_s"] is None


def test_only_epochs_of_all_ranks_are_timed() -> None:
    assert reduce([rank(0, [9.0, 1.0, 1.0]), rank(1, [9.0, 2.0])])["epoch_time_s"] == 2.0


def with_barriers(r: int, times: list[float]) -> dict[str, Any]:
    """A rank whose every second epoch, counted from the last, has barriers that cost and tell a wait."""
    report = rank(r, times)
    for row in report["epochs"]:
        aligned = (len(times) - row["epoch"]) % 2 == 0
        row |= {"timing": "breakdown" if aligned else "plain", "barriers": 4 * aligned, "cpu_s": 0.5}
        row["time_wait_s"] = 0.5 * row["epoch_time_s"] if aligned else 0.0
        row["time_forward_s"] -= row["time_wait_s"]
    return report


def test_epoch_time_is_of_plain_epochs_and_phases_are_of_those_with_barriers() -> None:
    # Epochs 1, 3, 5 are plain, 0, 2, 4 have barriers; one epoch of warm-up.
    got = reduce([with_barriers(0, [9.0, 1.0, 3.0, 1.0, 5.0, 1.0])])
    assert (got["epoch_time_s"], got["timed_epochs"]) == (1.0, 3)
    assert got["time_wait_s"] == pytest.approx(2.0)  # half of the mean of 3 and 5
    assert got["barrier_cost"] == pytest.approx(4.0 / 1.0 - 1)
    assert got["cpu_utilisation"] == pytest.approx(0.5)
    assert got["sum_wait_s"] == got["time_wait_s"]
    assert got["sum_compute_s"] == pytest.approx(2.0)  # forward 1, other 1


def test_cpu_seconds_by_phase_are_of_the_epochs_that_phases_are_of() -> None:
    ranks = [with_barriers(r, [9.0, 1.0, 3.0, 1.0, 5.0, 1.0]) for r in range(2)]
    assert reduce(ranks)["rank_cpu"] == [{}, {}]  # of rows that are older
    for r, report in enumerate(ranks):
        for row in report["epochs"]:
            row |= {"cpu_forward_s": 0.1 * row["epoch"] + r, "cpu_other_s": None}
    assert reduce(ranks)["rank_cpu"] == [{"forward": pytest.approx(0.3 + r)} for r in range(2)]  # epochs 2 and 4


def test_residue_is_the_worst_ranks_share_that_no_named_phase_covers() -> None:
    calm, loose = rank(0, [1.0] * 8), rank(1, [1.0] * 8)
    for row in calm["epochs"]:
        row |= {"time_forward_s": 0.99, "time_other_s": 0.01}
    for row in loose["epochs"]:
        row |= {"time_forward_s": 0.95, "time_other_s": 0.02}  # 0.03 in no phase at all
    assert reduce([calm, loose])["residue"] == pytest.approx(0.05)


@pytest.mark.parametrize(("epochs", "short"), [(6, True), (7, False)])
def test_too_few_epochs_for_an_interval_are_told(epochs: int, short: bool) -> None:
    got = reduce([rank(0, [1.0] * epochs)])  # one of them is warm-up
    assert (got["too_short"], got["noisy"]) == (short, False)


def test_without_phases_nothing_is_made_up() -> None:
    only_whole = rank(0, [1.0] * 8)
    for row in only_whole["epochs"]:
        row |= {"timing": "wall", "time_forward_s": None, "time_other_s": None}
    got = reduce([only_whole])
    assert got["epoch_time_s"] == 1.0
    assert got["residue"] is None
    assert "time_forward_s" not in got


def test_what_was_not_timed_has_bytes_and_no_seconds() -> None:
    untimed = rank(0, [1.0] * 8)
    for row in untimed["epochs"]:
        row |= {"timing": "off", "epoch_time_s": None, "time_forward_s": None, "bytes_feature": 7}
    got = reduce([untimed])
    assert got["bytes_feature"] == 7
    assert {key for key, value in got.items() if key.endswith("_time_s") and value is not None} == set()
    assert (got["epoch_time_s"], got["timed_epochs"], got["throughput_epochs_s"]) == (None, None, None)


def check(network: str, sent: int | None, counted: int, *, loopback: bool = False) -> dict[str, Any]:
    return {
        "interface": "eth0",
        "network": network,
        "loopback": loopback,
        "sent_bytes": sent,
        "counted_sent_bytes": counted,
    }


@pytest.mark.parametrize(
    ("checks", "wire", "ratio"),
    [
        ([check("a", 440, 400), check("b", 220, 200)], 165, 1.1),
        ([check("a", 660, 400, loopback=True), check("a", 660, 200, loopback=True)], 165, 1.1),
        ([check("a", 440, 400), check("a", 440, 400)], 110, None),  # two ranks behind one link
        ([check("a", 440, 400), check("b", None, 200)], None, None),
    ],
    ids=["own links", "loopback", "shared link", "not available"],
)
def test_an_interface_is_counted_once(checks: list[dict[str, Any]], wire: float | None, ratio: float | None) -> None:
    got = reduce([rank(r, [1.0] * 4, traffic_check=c) for r, c in enumerate(checks)])
    assert got["wire_bytes"] == wire
    assert got["wire_ratio"] == (None if ratio is None else pytest.approx(ratio))


def test_swaps_do_not_go_over_the_wire() -> None:
    link = {"interface": "eth0", "loopback": False, "mtu": 1500}
    ranks = [rank(r, [1.0] * 4, link=link) for r in range(2)]
    for row in ranks[0]["epochs"]:
        row["bytes_swap"] = 5000
    got = reduce(ranks)
    assert (got["bytes_swap"], got["bytes_embedding"]) == (5000, 300)
    assert got["wire_estimate_bytes"] == pytest.approx(300 * 1514 / 1448)


def test_the_estimate_on_the_wire_adds_the_headers_of_full_frames() -> None:
    link = {"interface": "eth0", "loopback": False, "mtu": 1500}
    got = reduce([rank(r, [1.0] * 4, link=link) for r in range(2)])
    assert got["bytes_embedding"] == 300
    assert got["wire_estimate_bytes"] == pytest.approx(300 * 1514 / 1448)
    assert reduce([rank(0, [1.0], link=link | {"loopback": True})])["wire_estimate_bytes"] is None
    assert reduce([rank(0, [1.0], link=link), rank(1, [1.0])])["wire_estimate_bytes"] is None


def metered(r: int, counts_for: list[str], **figures: float | None) -> dict[str, Any]:
    report = rank(r, [1.0] * 4, meters={"counts_for": counts_for, "peak_rss_bytes": 100 * (r + 1)})
    for row in report["epochs"]:
        row |= figures
    return report


def test_energy_adds_up_over_devices_and_utilisation_does_not() -> None:
    first = metered(0, ["energy_gpu_j", "energy_cpu_j"], energy_gpu_j=5.0, energy_cpu_j=2.0, gpu_utilisation=0.5)
    second = metered(1, ["energy_gpu_j"], energy_gpu_j=7.0, energy_cpu_j=None, gpu_utilisation=1.0)
    third = metered(2, [], energy_gpu_j=None, gpu_utilisation=None)
    got = reduce([first, second, third])
    assert (got["energy_gpu_j"], got["energy_cpu_j"], got["gpu_utilisation"]) == (12.0, 2.0, 0.75)
    assert got["gpu_power_w"] is None
    assert got["peak_rss_bytes"] == 300


def test_a_sum_or_a_maximum_with_one_missing_is_not_available() -> None:
    seen, unseen = metered(0, ["energy_gpu_j"], energy_gpu_j=5.0), metered(1, ["energy_gpu_j"])
    unseen["meters"]["peak_rss_bytes"] = None
    got = reduce([seen, unseen])
    assert got["energy_gpu_j"] is None
    assert got["peak_rss_bytes"] is None
