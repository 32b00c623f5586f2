"""`harness compare` and `harness merge`: what they print, and their exit codes."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report.fake import ENVIRONMENT, write_results

from harness.cli import main
from harness.cli.compare import cells
from harness.metrics import find_metric
from harness.results.comparison import Compared
from harness.results.record_store import ResultStore, read_at, record_places
from harness.results.stats import Interval

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    methods = (("full", {}), ("bns-gcn", {"rate": 0.1}))
    return write_results(tmp_path_factory.mktemp("compare") / "a", methods=methods, parts=(2,), seeds=(0, 1))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_one(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(exited.value.code or 0), captured.out, captured.err

    return run_one


def changed(before: Path, after: Path, factor: float = 1.0, **fields: Any) -> Path:
    """Write the same trials with all times `factor` as long."""
    for place in record_places(before):
        record, rows = read_at(place), pd.read_parquet(place / "epochs.parquet")
        rows["epoch_time_s"] *= factor
        result = record.result | {"epoch_time_s": factor * record.result["epoch_time_s"]}
        new = record.model_copy(update={"result": result} | fields)
        ResultStore(after, "demo").commit(record.trial, new, rows.to_dict("records"), "")
    return after


def test_a_slowdown_is_told_and_fails(before: Path, tmp_path: Path, run: Run) -> None:
    after = changed(before, tmp_path / "b", 1.3, environment=ENVIRONMENT | {"commit": "f" * 40})
    code, out, err = run("compare", before, after, "--fail-on", "10%", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 1
    assert [(row["seeds"], row["verdict"]) for row in rows] == [("2", "slower"), ("2", "slower"), ("4", "slower")]
    assert all(float(row["change"]) == pytest.approx(1.3) for row in rows)
    assert all(1.1 < float(row["low"]) < 1.3 < float(row["high"]) < 1.6 for row in rows)
    assert err.splitlines() == ["code: commit: 0123456789 -> ffffffffff"]
    assert run("compare", before, after, "--fail-on", "50")[0] == 0
    assert run("compare", after, before, "--fail-on", "10%")[0] == 0
    code, out, _ = run("compare", before, after)
    assert code == 0
    assert "1.300" in out


def rewritten(before: Path, after: Path, seed: int, **result: Any) -> Path:
    """Write the same trials, those of a seed with other figures; None: without."""
    for place in record_places(before):
        record = read_at(place)
        new = record.result | (result if record.config["seed"] == seed else {})
        kept = {key: value for key, value in new.items() if value is not None}
        ResultStore(after, "demo").commit(record.trial, record.model_copy(update={"result": kept}), [], "")
    return after


def test_a_change_from_nothing_fails(before: Path, tmp_path: Path, run: Run) -> None:
    silent = rewritten(before, tmp_path / "silent", 0, bytes_swap=0)
    loud = rewritten(silent, tmp_path / "loud", 0, bytes_swap=288)
    code, out, _ = run("compare", silent, loud, "--metric", "bytes_swap", "--fail-on", "5%")
    assert code == 1
    rows = [re.split("  +", line.strip()) for line in out.splitlines() if "288" in line]
    assert len(rows) == 2
    assert {tuple(row[-6:]) for row in rows} == {("1", "0 B", "288 B", "-", "-", "more")}
    assert run("compare", loud, silent, "--metric", "bytes_swap", "--fail-on", "5%")[0] == 0
    assert csv_rows(run, silent, loud, "--metric", "bytes_swap")[-2]["change"] == ""


def test_a_score_that_is_gone_fails(before: Path, tmp_path: Path, run: Run) -> None:
    after = rewritten(before, tmp_path / "b", 1, best_val=None)
    code, out, _ = run("compare", before, after, "--metric", "best_val", "--fail-on", "5%")
    assert (code, out.count("no value now")) == (1, 2)
    both = rewritten(after, tmp_path / "both", 0, best_val=None)
    code, out, err = run("compare", both, both, "--metric", "best_val", "--fail-on", "5%")
    assert code == 2
    assert "no trial that ended well on both sides has 'best_val'" in err
    code, out, _ = run("compare", after, after, "--metric", "best_val")
    assert (code, out.count("(neither side has best_val)")) == (0, 2)


def test_two_seeds_that_scatter_have_no_interval(before: Path, tmp_path: Path, run: Run) -> None:
    """One takes a third as long, the other three times: the ends of the interval would be far more than 100 apart."""
    for place in record_places(before):
        record = read_at(place)
        result = record.result | {"epoch_time_s": record.result["epoch_time_s"] * (1 / 3, 3)[record.config["seed"]]}
        ResultStore(tmp_path / "b", "demo").commit(record.trial, record.model_copy(update={"result": result}), [], "")
    code, out, _ = run("compare", before, tmp_path / "b")
    rows = [re.split("  +", line) for line in out.splitlines() if "  cannot tell" in line]
    assert (code, [row[-2] for row in rows][:2]) == (0, ["none (2 seeds)"] * 2)
    low, high = (float(row[end]) for end in ("low", "high") for row in csv_rows(run, before, tmp_path / "b")[:1])
    assert high > 100 * low


def csv_rows(run: Run, *arguments: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run("compare", *arguments, "--format", "csv")[1])))


@pytest.mark.parametrize(
    ("low", "high", "metric", "said"),
    [
        (0.9, 1.2, "epoch_time_s", "[0.900, 1.200]"),
        (0.5, 51.0, "epoch_time_s", "none (2 seeds)"),
        (0.5, math.inf, "time_to_target_s", "none (2 seeds)"),
        (1.3, math.inf, "time_to_target_s", "at least 1.300"),
        (0.0, 0.8, "time_to_target_s", "at most 0.800"),
        (0.0, 3.0, "time_to_target_s", "none (2 seeds)"),
        (-0.8, 0.4, "best_val", "none (2 seeds)"),
        (0.001, 0.4, "best_val", "[+0.10, +40.00]"),  # a difference: that it begins near 0 says nothing of its width
    ],
)
def test_an_interval_whose_ends_say_nothing_is_not_shown(low: float, high: float, metric: str, said: str) -> None:
    found = Interval(math.sqrt(abs(low) * min(high, 100)), low, high)
    row = Compared("", 2, 1.0, 2.0, 2.0, found.centre, found, "", worse=False, needs="", drift="none")
    assert cells(row, find_metric(metric))[-1] == said


def test_results_against_themselves_are_the_same(before: Path, run: Run) -> None:
    for metric in ("epoch_time_s", "bytes_feature", "best_val", "peak_memory_bytes"):
        code, out, _ = run("compare", before, before, "--fail-on", "0%", "--metric", metric, "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert code == 0
        assert {row["verdict"] for row in rows} == {"same"}


def test_times_of_other_machines_are_refused(before: Path, tmp_path: Path, run: Run) -> None:
    after = changed(before, tmp_path / "b", environment=ENVIRONMENT | {"cpu": "Another", "driver": "550"})
    code, _, err = run("compare", before, after)
    assert code == 2
    assert "times of different machines: cpu: Example CPU @ 2.4 GHz -> Another" in err
    assert run("compare", before, after, "--metric", "bytes_feature")[0] == 0
    code, out, _ = run("compare", before, after, "--any-machine")
    assert code == 0
    assert "warning: cpu: Example CPU" in out
    assert "warning: driver: unknown -> 550" in out


def test_trials_on_other_data_are_not_compared(before: Path, tmp_path: Path, run: Run) -> None:
    """Each side was run where no record was: the ids say nothing of the data."""
    prints = {"partition_fingerprint": "p"}
    one = changed(before, tmp_path / "one", dataset={"name": "digits", "fingerprint": "v1"}, **prints)
    other = changed(before, tmp_path / "other", dataset={"name": "digits", "fingerprint": "v2"}, **prints)
    code, _, err = run("compare", one, other)
    assert (code, "all trials that are on both sides ran on other data" in err) == (2, True)
    record = read_at(record_places(one)[0])
    same = record.model_copy(update={"dataset": record.dataset | {"fingerprint": "v2"}})
    ResultStore(one, "demo").commit(record.trial, same, [], "")
    code, out, _ = run("compare", one, other)
    assert code == 0
    assert out.count("(ran on other data)") == 3
    assert f"not compared: {record.label}" not in out


def test_a_trial_that_fails_now_fails(before: Path, tmp_path: Path, run: Run) -> None:
    after = changed(before, tmp_path / "b")
    place = record_places(after)[0]
    record = read_at(place).model_copy(update={"status": "oom", "reason": "rank 1"})
    ResultStore(after, "demo").commit(record.trial, record, [], "")
    code, out, _ = run("compare", before, after, "--fail-on", "5%")
    assert code == 1
    assert f"not compared: {record.label} (A: ok, B: oom, rank 1)" in out
    assert run("compare", before, after)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--metric", "epoch_time"), "did you mean 'epoch_time_s'?"),
        (("--metric", "accuracy"), "'accuracy' is no metric of a trial (did you mean 'best_val' or 'test_at_best_val'"),
        (("--metric", "test_accuracy"), "(did you mean 'test_at_best_val'"),
        (("--metric", "test_acc"), "(did you mean 'test_at_best_val'"),
        (("--metric", "nope"), "'nope' is no metric of a trial (docs/measurements.md has all)"),
        (
            ("--metric", "epoch_time_s,best_val"),
            "two directories are compared by one metric, not 'epoch_time_s,best_val'",
        ),
        (("--fail-on", "much"), "'much' is no percentage (e.g. 5%)"),
        (("--fail-on", "5%", "--metric", "boundary_nodes"), "nothing says whether more or less"),
        (("--metric", "energy_gpu_j"), "has 'energy_gpu_j'"),
    ],
)
def test_mistakes(before: Path, run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = run("compare", before, before, *arguments)
    assert code == 2
    assert said in err


def test_a_name_of_a_suite_finds_its_results(before: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `harness run demo` wrote is in results/demo."""
    (before / "results").symlink_to(before)
    monkeypatch.chdir(before)
    for command in (("status", "demo.yaml"), ("compare", "demo.yaml", "results"), ("report", "demo.yaml")):
        code, _, err = run(*command)
        said = "error: demo.yaml: no such directory of results (did you mean results/demo?)\n"
        assert (code, err) == (2, said)
    (before / "results").unlink()


def test_a_file_in_the_place_of_a_reports_directory_is_named(before: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "out").write_text("")
    code, _, err = run("report", before, "--out", tmp_path / "out", "--format", "md")
    assert (code, err.count("\n"), f"{tmp_path / 'out'}: " in err, "name another" in err) == (2, 1, True, True)


def test_merged_results_compare(before: Path, tmp_path: Path, run: Run) -> None:
    code, out, _ = run("merge", tmp_path / "out", before / "demo", before)
    assert (code, out.splitlines()[0]) == (0, "4 trials copied, 4 were there, 0 gave way to another")
    assert run("compare", before, tmp_path / "out", "--metric", "bytes_feature", "--fail-on", "0%")[0] == 0
    changed(before, tmp_path / "b", 1.3)
    code, _, err = run("merge", tmp_path / "out", tmp_path / "b")
    assert code == 2
    assert "--keep first" in err


def test_a_history_names_the_commit_that_made_it_slower(before: Path, tmp_path: Path, run: Run) -> None:
    for i, (factor, commit) in enumerate([(1.0, "a"), (1.0, "b"), (1.5, "c")]):
        changed(
            before,
            tmp_path / f"v{i}",
            factor,
            environment=ENVIRONMENT | {"commit": commit * 40, "dirty": False},
            started=f"2026-01-0{i + 1}T00:00:00+00:00",
        )
    places = [tmp_path / f"v{i}" for i in range(3)]
    code, out, _ = run("history", *places)
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("cccccccc")]
    assert "changed: slower" in lines[0]
    assert "1.500" in lines[0]
    assert not any("changed" in line for line in out.splitlines() if not line.startswith("cccccccc"))
    rows = list(csv.DictReader(io.StringIO(run("history", *places, "--format", "csv")[1])))
    assert [row["version"] for row in rows] == ["aaaaaaaa", "bbbbbbbb", "cccccccc"]
    assert [row["since"] for row in rows] == ["", "aaaaaaaa", "aaaaaaaa"]
    assert float(rows[2]["change"]) == pytest.approx(1.5)
    assert run("history", tmp_path / "nowhere")[0] == 2


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets, two parts, three seeds; `ours` takes half as long as `full` on both and sends as much."""
    found = write_results(
        tmp_path_factory.mktemp("methods") / "first",
        datasets=(("digits", "real", ""), ("other", "real", "")),
        methods=(("full", {}), ("ours", {}), ("bns-gcn", {"rate": 0.1})),
        parts=(2,),
        seeds=(0, 1, 2),
        train={"target": 0.5},
    )
    times = {"full": (2.0, 2.02, 1.98), "ours": (1.0, 1.02, 0.99), "bns-gcn": (1.01, 1.0, 1.02)}
    for place in record_places(found):
        record, rows = read_at(place), pd.read_parquet(place / "epochs.parquet")
        taken = times[record.config["method"]["name"]][record.config["seed"]]
        rows["epoch_time_s"], rows["val_score"] = taken, 0.9
        sent = {key: 1000 for key in record.result if key.startswith("bytes_")}
        result = record.result | sent | {"epoch_time_s": taken, "best_val": 0.9}
        ResultStore(found.parent / "all", "demo").commit(
            record.trial, record.model_copy(update={"result": result}), rows.to_dict("records"), ""
        )
    return found.parent / "all"


@pytest.mark.slow
def test_a_method_is_compared_with_others(methods: Path, run: Run) -> None:
    code, out, _ = run("compare", methods, "--method", "ours", "--against", "full,bns-gcn")
    assert code == 0
    lines = out.splitlines()
    assert lines[-1] == (
        "Time to target: ours is surely sooner than full on 2 of 2, than bns-gcn on 0 of 2; surely later on 0 of 4"
    )
    assert [line.partition(",")[0] for line in lines if line.endswith(" is better")] == [
        "time_to_target_s", "epoch_time_s", "best_val", "test_at_best_val", "counted_bytes",
    ]  # fmt: skip
    assert "verdicts hold with 95 % for all 20 rows together" in lines
    code, out, _ = run("compare", methods, "--method", "ours", "--metric", "epoch_time_s,best_val", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["metric"], row["against"]) for row in rows[::4]] == [("epoch_time_s", "full"), ("best_val", "full")]
    full = [row for row in rows if row["against"] == "full" and row["metric"] == "epoch_time_s"]
    assert {row["where"] for row in full} == {"digits · sage, P = 2", "other · sage, P = 2"}
    assert all(float(row["change"]) == pytest.approx(0.5016, abs=1e-3) for row in full)
    assert {row["verdict"] for row in full} == {"faster"}
    assert {row["verdict"] for row in rows if row["metric"] == "best_val"} == {"same"}


def test_a_method_that_is_worse_fails(methods: Path, tmp_path: Path, run: Run) -> None:
    worse = ("--method", "full", "--against", "ours", "--metric", "epoch_time_s")
    assert run("compare", methods, *worse)[0] == 0
    assert run("compare", methods, *worse, "--fail-on", "90%")[0] == 1
    assert run("compare", methods, *worse, "--fail-on", "110%")[0] == 0
    better = ("--method", "ours", "--against", "full", "--metric", "epoch_time_s", "--fail-on", "5%")
    assert run("compare", methods, *better)[0] == 0
    broken = changed(methods, tmp_path / "broken")
    place = next(p for p in record_places(broken) if read_at(p).config["method"]["name"] == "ours")
    record = read_at(place).model_copy(update={"status": "oom", "reason": "rank 1"})
    ResultStore(broken, "demo").commit(record.trial, record, [], "")
    code, out, _ = run("compare", broken, *better)
    assert (code, "1 of 3 trials of ours on " in out, "did not end well: oom" in out) == (1, True, True)


def test_methods_on_other_machines_are_refused(methods: Path, tmp_path: Path, run: Run) -> None:
    other = changed(methods, tmp_path / "other")
    for place in record_places(other):
        record = read_at(place)
        if record.config["method"]["name"] == "ours":
            new = record.model_copy(update={"environment": ENVIRONMENT | {"cpu": "Another"}})
            ResultStore(other, "demo").commit(record.trial, new, [], "")
    asked = ("compare", other, "--method", "ours", "--against", "full", "--metric")
    code, _, err = run(*asked, "epoch_time_s")
    assert (code, "times of different machines: cpu: Example CPU @ 2.4 GHz -> Another" in err) == (2, True)
    assert run(*asked, "epoch_time_s", "--any-machine")[0] == 0
    assert run(*asked, "best_val")[0] == 0


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to compare with (name a second directory, or a method of this one with --method)"),
        (("B", "--method", "ours"), "--method: compares methods within one directory (leave 'B' out)"),
        (("B", "--against", "full"), "--against: needs --method"),
        (("--method", "our"), "--method: no trial of 'our' (did you mean 'ours'?)"),
        (("--method", "ours", "--against", "ful"), "--against: no trial of 'ful' (did you mean 'full'?)"),
        (("--method", "ours", "--against", "ours"), "--against: nothing but 'ours' itself to hold it against (there: "),
        (("--method", "ours", "--metric", "accuracy"), "--metric: 'accuracy' is no metric of a trial (did you mean"),
        (("--method", "ours", "--metric", "energy_gpu_j"), "have energy_gpu_j"),
        (("--method", "ours", "--metric", "boundary_nodes", "--fail-on", "5"), "nothing says whether more or less"),
    ],
)
def test_mistakes_with_methods(methods: Path, run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = run("compare", methods, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
