from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import main
from harness.errors import UserError
from harness.results.frames import load_results
from harness.results.record import Record, epoch_rows, finite, read_record, without_epochs
from harness.results.record_store import ResultStore


def test_ranks_and_epochs_are_kept_apart() -> None:
    ranks = [{"rank": r, "epochs": [{"epoch": e, "rank": r} for e in range(2)]} for r in range(2)]
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


@pytest.mark.parametrize(
    ("key", "odd"),
    [
        ("colour", "red; } body { display: none"), ("colour", 7), ("defaults", []), ("presets", "x"),
        ("numbers", {"a": 1}), ("numbers", [[1], "rate"]), ("baseline", 3), ("metrics", "loss"),
        ("metrics", [3, {"name": 1}, {"name": "a", "unit": []}, {"name": "b", "better": "red"}, {"name": "kept"}]),
    ],
)  # fmt: skip
def test_what_is_declared_oddly_is_not_declared(make_record, key: str, odd: Any) -> None:
    sound = {
        "family": "full-graph",
        "colour": "#e69f00",
        "defaults": {},
        "presets": {},
        "numbers": [],
        "baseline": None,
    }
    content = json.loads(make_record().to_json())
    del content["digest"]
    read = Record.model_validate(content | {"declared": sound | {"metrics": []} | {key: odd}}).declared
    assert read.items() >= {name: value for name, value in sound.items() if name != key}.items()
    left = {"numbers": ["rate"], "metrics": [{"name": "kept"}]}[key] if isinstance(odd, list) and odd else None
    assert read.get(key) == left


def test_unknown_keys_of_the_same_schema_are_ignored(make_record, tmp_path: Path) -> None:
    content = json.loads(make_record().to_json()) | {"added": 1}
    (tmp_path / "record.json").write_text(json.dumps(content))
    assert isinstance(read_record(tmp_path / "record.json"), Record)


def test_an_edited_record_is_flagged(make_record, tmp_path: Path) -> None:
    record = make_record(result={"test_at_best_val": 0.7, "tiny": 1e-300, "none": None}, flags=["load: noisy"])
    home = ResultStore(tmp_path, "demo").commit(record.trial, record, [{"epoch": 0, "rank": 0, "loss": 0.1}], "")
    file, epochs = home / "record.json", home / "epochs.parquet"
    assert read_record(file).flags == ["load: noisy"]
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content, separators=(",", ":"), sort_keys=True))  # laid out otherwise
    assert read_record(file).flags == ["load: noisy"]
    for path, value in (("test_at_best_val", 0.9), ("tiny", 0.0), ("none", 0)):
        edited = content | {"result": content["result"] | {path: value}}
        file.write_text(json.dumps(edited))
        assert read_record(file).flags == ["load: noisy", "edited: record.json was changed after it was written"]
        file.write_text(read_record(file).to_json())  # it stays said
        assert read_record(file).flags[-1].startswith("edited: ")
    del content["digest"]
    file.write_text(json.dumps(content))  # as older ones
    assert read_record(file).flags == ["load: noisy"]
    epochs.write_bytes(epochs.read_bytes() + b" ")
    assert read_record(file).flags[1:] == ["edited: epochs.parquet was changed after it was written"]
    epochs.unlink()
    assert read_record(file).flags == ["load: noisy"]  # that it is missing is told where it is read


def test_what_was_edited_is_told(make_record, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = make_record(result={"test_at_best_val": 0.7, "epoch_time_s": 1.0})
    home = ResultStore(tmp_path / "r", "demo").commit(record.trial, record, [], "")
    (home / "record.json").write_text((home / "record.json").read_text().replace("0.7", "0.9"))
    assert "edited: " in load_results(tmp_path / "r")["flags"][0]
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "r"), str(tmp_path / "r")])
    line = f"warning: {record.label} ({record.trial}): record.json was changed after it was written\n"
    assert line in capsys.readouterr().out
