from __future__ import annotations

from typing import Any

from harness.results.reduce import flags, mark_load, reduce


def rank(number: int, cores: list[int], epochs: list[tuple[float | None, float]], **more: Any) -> dict[str, Any]:
    """A rank whose cores were busy, and busy with itself, so much in its epochs."""
    rows = [
        {"epoch": i, "rank": number, "busy_cores": busy, "own_cores": own, "steal_cores": 0.0, "epoch_time_s": 1.0}
        for i, (busy, own) in enumerate(epochs)
    ]
    known = {"rank": number, "epochs": rows, "summary": {"warmup_epochs": 1}}
    return known | {"meters": {"load": {"machine": "m", "cores": cores, "window_s": 0.5}}} | more


def shares(*ranks: dict[str, Any]) -> list[list[float | None]]:
    mark_load(ranks)
    return [[row.get("foreign_share") for row in one["epochs"]] for one in ranks]


def test_others_are_who_is_busy_on_the_own_cores() -> None:
    assert shares(rank(0, [0, 1], [(1.5, 1.0), (0.9, 1.0)]), rank(1, [2], [(0.8, 0.8), (1.0, 0.5)])) == [
        [0.25, 0.0],
        [0.0, 0.5],
    ]


def test_ranks_on_the_same_cores_are_counted_together() -> None:
    assert shares(rank(0, [0, 1], [(2.0, 1.0)]), rank(1, [0, 1], [(2.0, 0.5)])) == [[0.25], [0.25]]
    elsewhere = rank(1, [0, 1], [(2.0, 0.5)], meters={"load": {"machine": "n", "cores": [0, 1]}})
    assert shares(rank(0, [0, 1], [(2.0, 2.0)]), elsewhere) == [[0.0], [0.75]]


def test_what_the_host_took_is_others() -> None:
    one = rank(0, [0, 1], [(1.0, 1.0)])
    one["epochs"][0]["steal_cores"] = 0.5
    assert shares(one) == [[0.25]]


def test_unknown_is_none() -> None:
    assert shares(rank(0, [0, 1], [(1.0, 1.0)]), rank(1, [1, 2], [(1.0, 1.0)])) == [[None], [None]]
    assert shares(rank(0, [0], [(None, 1.0)])) == [[None]]
    assert shares(rank(0, [0], [(1.0, 1.0)], meters={"load": None})) == [[None]]
    assert shares(rank(0, [0], [(1.0, 1.0)]), rank(1, [0], [])) == [[None], []]


def test_a_trial_mostly_under_load_is_flagged() -> None:
    calm, loaded = (1.0, 0.95), (1.0, 0.6)
    ranks = [rank(0, [0], [loaded, loaded, loaded, calm])]
    mark_load(ranks)
    assert flags(ranks) == ["load: noisy, others took 40% of the trial's cores (median) in 2 of 3 timed epochs"]
    assert reduce(ranks)["foreign_share"] is not None
    half = [rank(0, [0], [loaded, loaded, calm])]
    mark_load(half)
    assert flags(half) == []


def test_a_quota_that_stops_the_trial_is_load() -> None:
    ranks = [rank(0, [0], [(1.0, 1.0)] * 3)]
    for row in ranks[0]["epochs"]:
        row["throttled"] = 0.3
    mark_load(ranks)
    assert flags(ranks) != []


def test_a_gpu_that_is_held_down_is_flagged() -> None:
    def of(share: float | None, why: dict[str, float] | None) -> dict[str, Any]:
        return {"rank": 0, "meters": {"gpu_slowed_share": share, "gpu_slowed": why}}

    assert flags([of(0.1, {"heat": 0.1}), of(None, None)]) == []
    worst = of(0.4, {"heat": 0.1, "power cap": 0.3})
    said = "throttle: noisy, the GPU's clock was held down in 40% of the samples: power cap, heat"
    assert flags([of(0.2, {"heat": 0.2}), worst]) == [said]
