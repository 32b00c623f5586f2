"""Trials written for other tools, read back with those tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import UserError
from harness.results.record import Record
from harness.results.record_store import ResultStore
from harness.trackers import import_extra, read_runs

TRIAL = "0123456789ab"
STARTED = 1767323045  # 2026-01-02T03:04:05 UTC


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        {"epoch": epoch, "rank": rank, "epoch_time_s": 1.0 + rank + epoch, "loss": 2.0 - epoch,
         "time_forward_s": 0.5 * (1 + rank), "bytes_feature": 100, "val_score": 0.75 if epoch else None,
         "stats": {"a=b": 3}}
        for epoch in (0, 1) for rank in (0, 1)
    ]  # fmt: skip
    record = Record(
        trial=TRIAL,
        suite="demo",
        label="digits full <b>&",
        status="ok",
        started="2026-01-02T03:04:05+00:00",
        config={"method": {"name": "full", "options": {"rate": 0.5}}, "network": None, "seed": 3},
        result={"epoch_time_s": 2.5, "best_val": 0.75, "noisy": False, "final_loss": None},
    )
    ResultStore(tmp_path / "results", "demo").commit(TRIAL, record, rows, "")
    return tmp_path / "results"


def export(results: Path, to: str, out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Export twice; returns what is said."""
    for _ in range(2):
        with pytest.raises(SystemExit) as exited:
            main(["export", str(results), "--to", to, "--out", str(out)])
        assert not exited.value.code
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 trials written, 0 were there"
    assert said[2] == "0 trials written, 1 were there"
    return said


def test_what_is_told_of_a_trial(results: Path) -> None:
    [run] = read_runs(results)
    assert (run.suite, run.trial, run.started) == ("demo", TRIAL, STARTED)
    assert run.params == {"method.name": "full", "method.options.rate": 0.5, "network": None, "seed": 3}
    assert run.metrics == {"epoch_time_s": 2.5, "best_val": 0.75}
    first, second = run.steps()
    assert first == (1, STARTED + 2.0, {
        "epoch_time_s": 2.0, "loss": 2.0, "time_forward_s": 0.75, "bytes_feature": 200.0, "stat_a_b": 6.0,
    })  # fmt: skip
    assert second[:2] == (2, STARTED + 2.0 + 3.0)
    assert second[2]["val_score"] == 0.75


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"--to: wandb is not installed .*'\.\[wandb\]'"):
        import_extra("no_such_module", "wandb")


def test_a_record_cannot_name_another_directory(results: Path) -> None:
    path = results / "demo" / TRIAL / "record.json"
    path.write_text(path.read_text().replace('"demo"', '"../demo"'))
    with pytest.raises(UserError, match="cannot name directories"):
        read_runs(results)


def test_tensorboard(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    export(results, "tensorboard", tmp_path / "out", capsys)
    read = reader.EventAccumulator(str(tmp_path / "out" / "demo" / TRIAL))
    read.Reload()
    times = read.Scalars("epoch_time_s")
    assert [(event.step, event.value, event.wall_time) for event in times] == [
        (1, 2.0, STARTED + 2.0),
        (2, 3.0, STARTED + 5.0),
    ]
    assert [event.value for event in read.Scalars("final/best_val")] == [0.75]
    assert read.Tags()["scalars"].count("stat_a_b") == 1


def test_mlflow(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mlflow, _ = pytest.importorskip("mlflow"), pytest.importorskip("sqlalchemy")
    export(results, "mlflow", tmp_path / "out", capsys)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("demo").experiment_id])
    assert (run.info.status, run.info.run_name, run.data.tags["trial"]) == ("FINISHED", "digits full <b>&", TRIAL)
    assert run.data.params["method.options.rate"] == "0.5"
    history = client.get_metric_history(run.info.run_id, "epoch_time_s")
    assert [(m.step, m.value, m.timestamp) for m in history] == [
        (1, 2.0, 1000 * (STARTED + 2)),
        (2, 3.0, 1000 * (STARTED + 5)),
    ]
    assert run.data.metrics["final/best_val"] == 0.75


def test_wandb(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb")
    export(results, "wandb", tmp_path / "out", capsys)
    [written] = (tmp_path / "out" / "wandb").glob("offline-run-*/*.wandb")
    assert written.name == f"run-{TRIAL}.wandb"
    content = written.read_bytes()
    assert all(name in content for name in (b"epoch_time_s", b"final/best_val", b"method.options.rate"))
