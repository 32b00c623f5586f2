from __future__ import annotations

import base64
import json
import math
import re
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from harness_methods.graphsaint import GraphSAINT
from pyarrow import parquet

from harness.errors import UserError
from harness.metrics import METRICS, as_declared
from harness.results.frames import load_epochs, load_inputs, load_results
from harness.results.record_store import EPOCH_COLUMNS, ResultStore

EPOCHS = [
    {"epoch": 0, "rank": 0, "epoch_time_s": 1.5, "loss": 2.0, "val_score": None, "stats": {"kept": 3}},
    {"epoch": 1, "rank": 0, "epoch_time_s": 0.5, "loss": float("nan"), "val_score": 0.25,
     "stats": {"kept": 4, "how": "all"}},
    {"epoch": 0, "rank": 1, "epoch_time_s": 1.0, "loss": 2.0, "val_score": None, "stats": {}},
]  # fmt: skip


DECLARED = {"metrics": as_declared(GraphSAINT.metrics)}


@pytest.fixture
def root(tmp_path: Path, make_record) -> Path:
    store = ResultStore(tmp_path, "demo")
    result = {
        "epoch_time_s": 0.5,
        "epochs": 2,
        "throughput_epochs_s": 2.0,
        "best_val": 0.25,
        "time_forward_s": 0.4,
        "time_mine_s": 0.1,
        "bytes_embedding": 100.0,
        "peak_memory_bytes": 1 << 30,
        "peak_memory_source": "VmHWM",
        "boundary_nodes": 6,
        "noisy": False,
        "presampled": 40,
        "presample_s": None,
        "checksum": "aa",
    }
    store.commit("0" * 12, make_record("0" * 12, result=result, declared=DECLARED), EPOCHS, "")
    store.commit("1" * 12, make_record("1" * 12, status="oom", reason="rank 1", wall_s=None), [], "")
    ResultStore(tmp_path, "other").commit("2" * 12, make_record("2" * 12, suite="other"), EPOCHS[:1], "")
    return tmp_path


def test_one_row_a_trial(root: Path) -> None:
    frame = load_results(root)
    assert list(frame["trial"]) == ["0" * 12, "1" * 12, "2" * 12]
    assert list(frame["suite"]) == ["demo", "demo", "other"]
    own = ["time_mine_s", "presampled", "presample_s"]
    assert list(frame.columns) == [*METRICS, *own]
    row = frame.iloc[0]
    assert (row["dataset"], row["model"], row["method"], row["parts"], row["partitioner"], row["seed"]) == (
        "digits",
        "sage",
        "bns-gcn",
        2,
        "metis",
        3,
    )
    assert row["options"] == {"rate": 0.1}
    assert (row["dataset_note"], row["origin"], row["status"]) == ("", "real", "ok")
    assert (row["epoch_time_s"], row["time_mine_s"], row["peak_memory_bytes"]) == (0.5, 0.1, 1 << 30)
    assert row["wall_s"] == 12.5
    assert row["presampled"] == 40
    assert math.isnan(row["presample_s"])  # the cache had the counts


def test_a_methods_own_figures_have_columns(tmp_path: Path, make_record) -> None:
    store = ResultStore(tmp_path, "demo")
    store.commit("0" * 12, make_record("0" * 12, result={"stats": {"kept": 3.5}}), [], "")
    store.commit("1" * 12, make_record("1" * 12, result={"epochs": 2}), [], "")  # older than stats
    frame = load_results(tmp_path)
    assert list(frame.columns) == [*METRICS, "stat_kept"]
    assert frame["stat_kept"].tolist()[0] == 3.5
    assert math.isnan(frame["stat_kept"][1])


def test_missing_figures_are_nan_never_zero(root: Path) -> None:
    row = load_results(root).iloc[1]
    for column in ("epoch_time_s", "bytes_embedding", "bytes_swap", "peak_memory_bytes", "wall_s", "best_val"):
        assert math.isnan(row[column])
    assert (row["status"], row["reason"]) == ("oom", "rank 1")


def test_root_suite_and_trial_directories(root: Path) -> None:
    assert len(load_results(str(root))) == 3
    assert len(load_results(root / "demo")) == 2
    assert list(load_results(root / "demo" / ("1" * 12))["status"]) == ["oom"]
    assert len(load_epochs(root)) == 4
    assert len(load_epochs(root / "demo")) == 3
    assert len(load_epochs(root / "demo" / ("1" * 12))) == 0


def test_a_copy_of_a_trial_or_a_suite_counts_once(root: Path, make_record) -> None:
    frame, epochs = load_results(root), load_epochs(root)
    shutil.copytree(root / "demo" / ("0" * 12), root / "demo" / f"{'0' * 12} copy")
    shutil.copytree(root / "other", root / "other-old")
    pd.testing.assert_frame_equal(load_results(root), frame)
    pd.testing.assert_frame_equal(load_epochs(root), epochs)
    assert len(load_inputs(root).epochs) == len(epochs)
    later = make_record("2" * 12, suite="other", started="2027-01-01T00:00:00+00:00")
    ResultStore(root, "again").commit("2" * 12, later, EPOCHS[:1] * 2, "")  # not a copy: it ran again
    assert list(load_results(root)["started"])[-1] == later.started
    assert len(load_results(root)) == len(frame)
    assert len(load_epochs(root)) == len(epochs) + 1


def test_rows_are_in_the_order_the_trials_started(tmp_path: Path, make_record) -> None:
    store = ResultStore(tmp_path, "demo")
    for trial, second in (("a" * 12, 3), ("b" * 12, 1), ("c" * 12, 2)):
        record = make_record(trial, started=f"2026-01-01T00:00:0{second}+00:00")
        store.commit(trial, record, [], "")
    assert [trial[0] for trial in load_results(tmp_path)["trial"]] == ["b", "c", "a"]


def test_nothing_yet_is_an_empty_frame_with_the_columns(tmp_path: Path) -> None:
    with ResultStore(tmp_path, "demo").runner():
        pass
    for path in (tmp_path, tmp_path / "demo"):
        assert list(load_results(path).columns) == list(METRICS)
        assert len(load_results(path)) == 0
        of_trial = ("dataset", "label", "method", "parts", "network", "seed")
        assert tuple(load_epochs(path).columns) == (*EPOCH_COLUMNS[:2], *of_trial, *EPOCH_COLUMNS[2:])
    with pytest.raises(UserError, match="no such directory of results"):
        load_results(tmp_path / "missing")


def test_epochs_keep_numbers_and_stats(root: Path) -> None:
    frame = load_epochs(root / "demo")
    assert list(frame["epoch"]) == [0, 1, 0]
    assert list(frame["rank"]) == [0, 0, 1]
    assert set(frame["trial"]) == {"0" * 12}
    assert frame["val_score"].dtype == float
    assert list(frame["val_score"].notna()) == [False, True, False]
    assert frame["stat_kept"].tolist()[:2] == [3, 4]
    assert math.isnan(frame["stat_kept"].tolist()[2])
    assert frame["stat_how"].tolist()[1] == "all"
    assert "stats" not in frame.columns
    assert math.isnan(frame["loss"][1])


def test_rows_of_epochs_name_their_trial(root: Path) -> None:
    rows = load_results(root).set_index(["suite", "trial"])
    of_trial = ["dataset", "label", "method", "parts", "network", "seed"]
    for each in load_epochs(root).to_dict("records"):
        assert [each[name] for name in of_trial] == rows.loc[(each["suite"], each["trial"]), of_trial].tolist()


def test_a_score_never_taken_is_a_column_of_nan(tmp_path: Path, make_record) -> None:
    home = ResultStore(tmp_path, "demo").commit("0" * 12, make_record(), EPOCHS[:1], "")
    assert pd.read_parquet(home / "epochs.parquet")["val_score"].dtype == float


@pytest.mark.parametrize("damage", [b"", b"PAR1 and then nothing", None])
def test_epochs_that_are_cut_short_are_passed_over(
    root: Path, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = root / "demo" / ("0" * 12) / "epochs.parquet"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert path.parent.name not in set(load_epochs(root)["trial"])
    assert capsys.readouterr().err.startswith(
        f"warning: passed over: {path}: damaged record: its epochs are gone or cut"
    )
    with pytest.raises(UserError, match=f"^{re.escape(str(path))}: damaged record: its epochs are gone or cut short"):
        load_epochs(path.parent)


def test_damaged_epochs_are_told(root: Path) -> None:
    path = root / "demo" / ("0" * 12) / "epochs.parquet"
    path.write_bytes(b"PAR1 and then nothing PAR1")
    with pytest.raises(UserError) as error:
        load_epochs(root)
    assert str(error.value).startswith(f"{path}: damaged epochs: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("column", ["suite", "trial"])
def test_epochs_that_say_whose_they_are_are_refused(root: Path, column: str) -> None:
    """They would take the place of what the record says."""
    path = next(root.rglob("epochs.parquet"))
    pd.DataFrame({"epoch": [0], "rank": [0], column: ["x"]}).to_parquet(path, index=False)
    with pytest.raises(UserError, match=f"damaged epochs: they have a column '{column}'"):
        load_epochs(root)


def test_a_text_that_is_in_every_row_is_not_unpacked(root: Path) -> None:
    """A dictionary has it once: some 100 KB stand for 20 GB."""
    path = next(root.rglob("epochs.parquet"))
    note = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), ["x" * 100_000])
    parquet.write_table(pa.table({"note": note}), path, store_schema=False)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UserError, match=r"damaged epochs: holds more than 381.5 MiB"):
        load_epochs(root)


def test_more_rows_than_a_trial_has_are_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.results.record_store.MOST_CELLS", 200)
    pd.DataFrame({"epoch": [0] * 101, "rank": 0}).to_parquet(next(root.rglob("epochs.parquet")), index=False)
    with pytest.raises(UserError, match="damaged epochs: 101 rows of 2 columns are no trial's"):
        load_epochs(root)


def test_integers_of_no_bits_are_told(root: Path) -> None:
    """The reader raises what is neither an OSError nor a ValueError."""
    path = next(root.rglob("epochs.parquet"))
    parquet.write_table(pa.table({"epoch": [0]}), path)
    said = parquet.read_metadata(path).metadata[b"ARROW:schema"]
    none = base64.b64encode(base64.b64decode(said).replace(b"\x40\0\0\0", bytes(4)))
    path.write_bytes(path.read_bytes().replace(said, none))
    with pytest.raises(UserError, match="damaged epochs: Integers with less than 8 bits"):
        load_epochs(root)


@pytest.mark.parametrize(
    ("section", "value", "said"),
    [
        ("result", {"epoch_time_s": "fast"}, "damaged record: result: epoch_time_s: bad value 'fast': must be"),
        ("result", {"best_val": [1]}, r"damaged record: result: best_val: bad value \[1\]: must be a number"),
        ("result", {"stats": {"x": {}}}, "damaged record: result: stats.x: Input should be a valid number"),
        ("result", {"stats": "x"}, "damaged record: result: stats: Input should be a valid dictionary"),
        ("result", {"epoch_time_s": float("nan")}, "damaged record: not JSON"),
        ("label", "\ud800", "damaged record: not JSON"),
        ("config", {"method": {"name": "\udc00"}}, "damaged record: not JSON"),
        ("config", {"method": {"name": ["full"]}}, "damaged record: config: method.*: Input should be"),
        ("config", {"method": {"name": "full", "options": 1}}, "damaged record: config: method.*: Input"),
        ("config", {"model": {"name": 1.5}}, "damaged record: config: model.*: Input should be"),
        ("config", {"dataset": 7}, "damaged record: config: dataset.*: Input should be"),
        ("config", {"network": {"x": 1}}, r"damaged record: config: network.*: Extra inputs"),
    ],
)
def test_a_record_with_a_value_of_another_kind_is_told(root: Path, section: str, value: object, said: str) -> None:
    path = next(root.rglob("record.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {section: value}))
    with pytest.raises(UserError, match=said) as error:
        load_results(path.parent)
    assert str(error.value).startswith(str(path))


def test_a_damaged_record_is_named_and_the_others_are_read(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(load_results(root)["trial"])
    (root / "demo" / ("1" * 12) / "record.json").write_text("null")
    assert set(load_results(root)["trial"]) == before - {"1" * 12}
    assert f"passed over: {root / 'demo' / ('1' * 12) / 'record.json'}: damaged record" in capsys.readouterr().err


def test_a_record_of_another_time_still_makes_a_row(tmp_path: Path, make_record) -> None:
    store = ResultStore(tmp_path, "demo")
    store.commit("0" * 12, make_record("0" * 12, config={"dataset": "digits", "extra": 1}), [], "")
    row = load_results(tmp_path).iloc[0]
    assert row["options"] == {}
    assert row["status"] == "ok"
