"""The oracle sees what it is there for: each kind of finding is planted once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults import oracle
from tests.faults.oracle import DOUBLED, LOST, ORPHANS, WRONG, Finding, Trial
from tests.faults.place import Place

ROWS = {"epoch": [0, 0, 1, 1], "rank": [0, 1, 0, 1], "steps": [1] * 4, "loss": [2.0, 2.0, 1.5, 1.5], "lr": [0.1] * 4}
SCORES = {name: [None, None, 0.5, 0.5] for name in ("train_score", "val_score", "test_score")}


def write_trial(place: Place, id_: str, checksum: str, **record: object) -> Path:
    home = place.trials / id_
    home.mkdir(parents=True)
    whole = {"trial": id_, "status": "ok", "config": {"seed": id_}, "result": {"checksum": checksum}}
    (home / "record.json").write_text(json.dumps(whole | record))
    pq.write_table(pa.table(ROWS | SCORES | {"bytes_model": [8] * 4}), home / "epochs.parquet")
    leases = place.trials / ".leases"
    leases.mkdir(exist_ok=True)
    (leases / f"{id_}.1").write_text('{"runner": "a", "done": false}')
    (leases / f"{id_}.2").write_text('{"runner": null, "done": true}')
    return home


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place.make(tmp_path / "place", "name: faults\n")
    for id_ in "ab":
        write_trial(made, id_, f"weights of {id_}")
    return made


@pytest.fixture
def reference(place: Place) -> dict[str, Trial]:
    trials, findings = oracle.read_trials(place.trials)
    assert findings == []
    return trials


def of(findings: list[Finding]) -> list[str]:
    return [finding.outcome for finding in findings]


def test_a_whole_place(place: Place, reference: dict[str, Trial]) -> None:
    assert oracle.judge(place, reference, Counter()) == []
    assert oracle.judge_between(place, reference, {}) == []
    assert oracle.judge_processes(place) == []


def rewrite(home: Path, **values: object) -> None:
    path = home / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def other_curve(home: Path, name: str, value: object) -> None:
    rows = ROWS | SCORES | {"bytes_model": [8] * 4}
    pq.write_table(pa.table(rows | {name: [*rows[name][:-1], value]}), home / "epochs.parquet")


@pytest.mark.parametrize(
    ("plant", "outcomes"),
    [
        (shutil.rmtree, [LOST]),
        (lambda home: (home / "record.json").write_text("{"), [WRONG, LOST]),
        (lambda home: (home / "record.json").unlink(), [WRONG, LOST]),
        (lambda home: (home / "epochs.parquet").unlink(), [WRONG, LOST]),
        (lambda home: rewrite(home, result={"checksum": "others"}), [WRONG]),
        (lambda home: rewrite(home, result={"checksum": float("nan")}), [WRONG, LOST]),
        (lambda home: rewrite(home, status="error"), [WRONG]),
        (lambda home: rewrite(home, config={"seed": "c"}), [WRONG]),
        (lambda home: rewrite(home, trial="b"), [WRONG, LOST]),
        (lambda home: other_curve(home, "loss", 1.5 + 2**-52), [WRONG]),
        (lambda home: other_curve(home, "val_score", None), [WRONG]),
        (lambda home: other_curve(home, "bytes_model", 9), [WRONG]),
        (lambda home: shutil.copytree(home, home.with_name("c")), [WRONG]),
        (lambda home: shutil.copytree(home, home.parent / ".staging" / "a.old"), [DOUBLED, ORPHANS]),
        (lambda home: (home.parent / ".leases" / "a.4").write_text('{"runner": null, "done": true}'), [DOUBLED]),
        (lambda home: (home.parent / ".suite.json.0123").touch(), [ORPHANS]),
        (lambda home: (home.parents[2] / "tmp" / "harness-x").mkdir(), [ORPHANS]),
        (lambda home: (home.parents[2] / "cache" / ".x.tmp").mkdir(), [ORPHANS]),
    ],
)
def test_what_is_planted_is_found(
    place: Place, reference: dict[str, Trial], plant: Callable[[Path], object], outcomes: list[str]
) -> None:
    plant(place.trials / "a")
    assert sorted(of(oracle.judge(place, reference, Counter()))) == sorted(outcomes)


def test_what_a_fault_may_leave(place: Place, reference: dict[str, Trial]) -> None:
    rewrite(place.trials / "a", status="error")
    assert of(oracle.judge_between(place, reference, {"a": ()})) == [WRONG]
    assert of(oracle.judge_between(place, reference, {"a": ("timeout",), "b": ("error",)})) == [WRONG]
    assert oracle.judge_between(place, reference, {"a": ("error",)}) == []
    assert oracle.judge_between(place, reference, {}) == []  # it had failed before
    assert {id_ for id_, _ in oracle.failures(place)} == {"a"}
    (place.trials / ".leases" / "a.4").write_text('{"runner": null, "done": true}')
    rewrite(place.trials / "a", status="ok")
    assert oracle.judge(place, reference, Counter({"a": 1})) == []


def test_a_process_that_is_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "PATIENCE_S", 0.1)
    sleep = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
    with subprocess.Popen(sleep, env=place.environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert of(oracle.judge_processes(place)) == [ORPHANS]
        assert [each.pid for each in place.clear()] == [process.pid]
    assert oracle.judge_processes(place) == []


def test_a_traceback_is_found() -> None:
    assert of(oracle.judge_output(f"x\n{oracle.TRACEBACK}:\n  File\nOSError: full\n")) == [WRONG]
    assert oracle.judge_output("error: full\n") == []
