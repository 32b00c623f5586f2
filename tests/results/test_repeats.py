"""Repeats in results: one row with their means, and a flag where their bits differ."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from harness.claims import judge
from harness.report.warnings import make_notes
from harness.report.write import csv_files
from harness.results.frames import load_inputs, load_results
from harness.results.record import Record, unlike
from harness.results.record_store import KeptSuite, ResultStore
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig
from harness.suite.sections import Claim

HERE = {"machine": "aaaaaaaa", "threads": 2, "commit": "c0", "packages": {"torch": "2"}}


def runs() -> list[TrialConfig]:
    sections = {
        "name": "demo",
        "datasets": ["sbm"],
        "methods": ["full", "bns-gcn"],
        "repeat": 3,
        "device": "cpu",
        "interleave": False,
    }
    return expand(Suite.model_validate(sections))


@pytest.fixture
def write(tmp_path: Path, make_record):
    def write_one(trial: TrialConfig, seconds: float, checksum: str = "f00d", **fields: Any) -> Record:
        result = {"epoch_time_s": seconds, "checksum": checksum, "final_test": 0.5, "noisy": False}
        config = trial.model_dump(mode="json")
        record = make_record(trial.id, **{"config": config, "result": result, "environment": HERE} | fields)
        ResultStore(tmp_path, "demo").commit(trial.id, record, [], "")
        return record

    return write_one


def test_a_trial_has_the_means_of_its_repeats(write, tmp_path: Path) -> None:
    a0, a1, a2, b0, *_ = runs()
    for trial, seconds in ((a1, 3.0), (a0, 1.0), (a2, 5.0), (b0, 7.0)):
        write(trial, seconds, flags=[f"load: {seconds}"] if trial in (a1, a2) else [])
    assert sorted(load_results(tmp_path)["repeat"]) == [0, 0, 1, 2]
    results = load_inputs(tmp_path).results.set_index("trial")
    assert results["epoch_time_s"].to_dict() == {a0.id: 3.0, b0.id: 7.0}
    assert results["runs"].to_dict() == {a0.id: 3, b0.id: 1}
    assert results.loc[a0.id, ["seed", "parts", "repeat", "final_test"]].tolist() == [0, 1, 0, 0.5]
    assert results.loc[a0.id, "flags"] == "load: 3.0; load: 5.0"
    assert len(load_inputs(tmp_path).records) == 4


def test_repeats_that_failed_do_not_count_and_keep_their_rows(write, tmp_path: Path) -> None:
    a0, a1, a2, b0, b1, _ = runs()
    write(a0, 1.0, status="oom", reason="too big", result={})
    write(a1, 3.0)
    write(a2, 4.0)
    write(b0, 1.0, status="oom", reason="too big", result={})
    write(b1, 1.0, status="error", reason="fell", result={})
    results = load_inputs(tmp_path).results.set_index("trial")
    assert results["epoch_time_s"].dropna().to_dict() == {a1.id: 3.5}
    assert results["status"].to_dict() == {a0.id: "oom", a1.id: "ok", b0.id: "oom", b1.id: "error"}
    assert results["runs"].to_dict() == {a0.id: 1, a1.id: 2, b0.id: 1, b1.id: 1}
    first, repeats, *_ = make_notes(load_inputs(tmp_path), [])
    assert first.lead == "3 of 4 trials did not end well"
    assert repeats.lead == "Repeats: 2 trials ran 5 times."
    report = SimpleNamespace(pictures=(), networks=(), elsewhere=())
    files = dict(csv_files(report, load_inputs(tmp_path)))  # type: ignore[arg-type]
    assert len(pd.read_csv(io.BytesIO(files["runs.csv"]))) == 5


def test_records_older_than_repeats_are_first_ones(write, tmp_path: Path) -> None:
    a0, a1, *_ = runs()
    config = a0.model_dump(mode="json")
    del config["repeat"]
    write(a0, 1.0, config=config)
    write(a1, 3.0)
    assert load_inputs(tmp_path).results["epoch_time_s"].tolist() == [2.0]


def test_repeats_on_other_data_are_another_trial(write, tmp_path: Path) -> None:
    """The first repeat ran before the data changed, and again after it; the second after it only."""
    a0, a1, a2, *_ = runs()
    was, now = ({"dataset": {"fingerprint": data}, "partition_fingerprint": "p"} for data in ("v1", "v2"))
    again = a0.model_copy(update={"data": "v2.p"})
    write(a0, 1.0, "f00d", **was)
    write(again, 3.0, "beef", **now)
    new = write(a1, 5.0, "beef", **now)
    write(a2, 9.0, status="error", reason="fell", result={}, dataset={})
    assert unlike(new, a1, tmp_path / "demo", 2) == []
    results = load_inputs(tmp_path).results.set_index("trial")
    assert results["epoch_time_s"].dropna().to_dict() == {a0.id: 1.0, again.id: 4.0}


def test_other_bits_on_the_same_machine_are_a_flag(write, tmp_path: Path) -> None:
    a0, a1, a2, *_ = runs()
    write(a0, 1.0)
    same, other = write(a1, 9.0), write(a2, 1.0, checksum="beef")
    assert unlike(same, a1, tmp_path / "demo", 2) == []
    [flag] = unlike(other, a2, tmp_path / "demo", 3)
    assert flag == "repeat: not the same bits as repeat 0, on the same machine: checksum f00d and beef"


@pytest.mark.parametrize("differs", [{"machine": "bbbbbbbb"}, {"threads": 1}, {"commit": "c1"}])
def test_bits_elsewhere_may_differ(write, tmp_path: Path, differs: dict[str, Any]) -> None:
    a0, a1, *_ = runs()
    write(a0, 1.0)
    assert unlike(write(a1, 1.0, checksum="beef", environment=HERE | differs), a1, tmp_path / "demo", 2) == []


def test_bits_of_gpus_and_of_damaged_records_are_not_compared(write, tmp_path: Path) -> None:
    a0, a1, *_ = runs()
    write(a0, 1.0)
    other = write(a1, 1.0, checksum="beef")
    assert len(unlike(other, a1, tmp_path / "demo", 2)) == 1
    assert unlike(other, a1.model_copy(update={"device": "cuda"}), tmp_path / "demo", 2) == []
    (tmp_path / "demo" / a0.id / "record.json").write_text("{")
    assert unlike(other, a1, tmp_path / "demo", 2) == []


def test_a_repeat_that_failed_has_no_bits(write, tmp_path: Path) -> None:
    a0, a1, *_ = runs()
    write(a0, 1.0, status="oom", reason="too big", result={})
    assert unlike(write(a1, 1.0), a1, tmp_path / "demo", 2) == []


def test_runs_are_known_by_their_row(write, tmp_path: Path) -> None:
    """Claims and winners count each run of a trial."""
    a0, a1, a2, b0, *_ = runs()
    for trial, seconds in ((a1, 3.0), (a0, 1.0), (b0, 7.0)):
        write(trial, seconds)
    write(a2, 5.0, status="oom", reason="too big", result={})
    inputs = load_inputs(tmp_path)
    found = inputs.runs.groupby("trial")["epoch_time_s"].apply(lambda own: sorted(own.dropna())).to_dict()
    assert found == {a0.id: [1.0, 3.0], b0.id: [7.0]}
    assert len(inputs.runs) == 4


def test_claims_find_a_trial_whose_first_run_failed(write, tmp_path: Path) -> None:
    _, a1, a2, *_ = runs()
    write(a1, 3.0)
    write(a2, 3.1)
    one = {"name": "c", "source": "s", "metric": "epoch_time_s", "of": {"method": "full"}, "expect": {"at_most": 9}}
    suite = KeptSuite(suite={}, name="demo", claims=(Claim.model_validate(one),), trials=tuple(runs()))
    [judged] = judge(load_inputs(tmp_path).runs, {"demo": suite})
    assert (judged.verdicts[0].state, judged.finished, judged.others) == ("holds", 1, 0)
