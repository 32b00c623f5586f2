from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.results.record import Record, epoch_rows, finite, read_record, reduce, without_epochs


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
    assert got["noisy"] is True


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


def test_ranks_and_epochs_are_kept_apart() -> None:
    ranks = [rank(0, [1.0, 2.0]), rank(1, [3.0, 4.0])]
    assert [(e["rank"], e["epoch"]) for e in epoch_rows(ranks)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all("epochs" not in r for r in without_epochs(ranks))
    assert "epochs" in ranks[0]


def test_json_is_strict_and_round_trips(make_record, tmp_path: Path) -> None:
    record = make_record(result={"a": float("nan"), "b": [float("inf"), np.float32(0.5)], "c": np.int64(3)})
    text = record.to_json()
    (tmp_path / "record.json").write_text(text)
    strict = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert strict["result"] == {"a": None, "b": [None, 0.5], "c": 3}
    again = read_record(tmp_path / "record.json")
    assert again.model_copy(update={"result": {}}) == record.model_copy(update={"result": {}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_finite_always_makes_strict_json(value: Any) -> None:
    json.dumps(finite(value), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged record: not JSON"),
        ('{"schema_version": 1, "trial', "damaged record: not JSON"),
        ("[" * 100_000, "damaged record: not JSON"),
        ("[]", "damaged record: Input should be"),
        ('{"schema_version": 1}', "damaged record: trial: Field required"),
        ('{"schema_version": "x"}', "damaged record: schema_version: "),
        ('{"schema_version": 2, "everything": "new"}',
         "record of schema 2, this harness reads up to 1 (upgrade harness)"),
    ],
    ids=range(7),
)  # fmt: skip
def test_damaged_and_newer_records_are_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_record(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_a_record_that_is_not_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="damaged record: not JSON"):
        read_record(tmp_path / "record.json")


def test_truncation_anywhere_is_told(make_record, tmp_path: Path) -> None:
    path, text = tmp_path / "record.json", make_record().to_json().rstrip()
    for length in range(0, len(text), 7):
        path.write_text(text[:length])
        with pytest.raises(UserError, match="damaged record"):
            read_record(path)


def test_unknown_keys_of_the_same_schema_are_ignored(make_record, tmp_path: Path) -> None:
    content = json.loads(make_record().to_json()) | {"added": 1}
    (tmp_path / "record.json").write_text(json.dumps(content))
    assert isinstance(read_record(tmp_path / "record.json"), Record)
