"""Evidence of a GPU: steps go on where they stopped, goals are judged by arithmetic, and the page is its summary's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from harness.runtime.method import METHODS
from tools.gpu import measure, page
from tools.gpu.checks import checks, model_ratio, twin_rows
from tools.gpu.evidence import Evidence, Outcome, Setting, Step, TimeUp, Turn, commit_of
from tools.gpu.goals import GOALS, moved_bytes, summary
from tools.gpu.steps import PARTS, STEPS, TWIN, counts_of, find, gpu_tests, measured

ROOT = Path(__file__).parents[2]
MODEL = {"name": "sage", "layers": 2, "hidden": 8, "norm": "layer", "dropout": 0.5}


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return Evidence(tmp_path, tmp_path / "out", Setting("cpu", quick=True))


def soon() -> float:
    return time.monotonic() + 60


def test_a_step_that_has_ended_stays_so_and_one_that_was_cut_goes_on(evidence: Evidence) -> None:
    turns = []

    def work(turn: Turn) -> Outcome:
        turns.append(turn)
        if len(turns) < 2:
            raise TimeUp
        return Outcome("ok", found={"turns": len(turns)})

    step = Step("cut", "", work)
    assert evidence.take(step, soon()).state == "left"
    assert evidence.ended("cut") is None
    assert evidence.take(step, soon()).state == "ok"
    again = Evidence(evidence.root, evidence.home.parent, evidence.setting).ended("cut")
    assert again is not None
    assert again["found"] == {"turns": 2}
    evidence.forget("cut")
    assert evidence.ended("cut") is None


def test_evidence_says_whose_code_it_is_of(evidence: Evidence) -> None:
    """A step of several turns is of the code of each; the checks are done anew, and of today's alone."""

    def git(*arguments: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *author, *arguments], cwd=evidence.root, check=True, capture_output=True, timeout=60)

    def commit() -> str:
        git("commit", "--allow-empty", "-m", "more")
        return commit_of(evidence.root)

    git("init")
    (evidence.root / "file").write_text("1")
    git("add", "file")
    steps = Step("cut", "", lambda turn: Outcome("left")), Step("checks", "", lambda turn: Outcome("ok"), always=True)
    before = commit()
    for step in steps:
        evidence.take(step, soon())
    after = commit()
    assert before != after
    (evidence.root / "file").write_text("2")
    for step in steps:
        evidence.take(step, soon())
    told = [json.loads((evidence.home / f"{name}.json").read_text())["commits"] for name in ("cut", "checks")]
    assert told == [sorted([before, f"{after}+"]), [f"{after}+"]]


def test_evidence_of_another_setting_is_not_ours(evidence: Evidence) -> None:
    evidence.take(Step("one", "", lambda turn: Outcome("ok")), soon())
    assert Evidence(evidence.root, evidence.home.parent, Setting("cuda")).ended("one") is None


def test_a_step_that_raises_has_failed_and_says_why(evidence: Evidence) -> None:
    def broken(turn: Turn) -> Outcome:
        raise ValueError("no such thing")

    assert evidence.take(Step("broken", "", broken), soon()).state == "failed"
    assert evidence.take(Step("after", "", lambda turn: Outcome("ok")), soon()).state == "ok"
    ended = evidence.ended("broken")
    assert ended is not None
    assert ended["reason"] == "ValueError: no such thing"


def test_a_command_ends_with_all_that_it_started_when_the_time_is_up(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.gpu.evidence.GRACE_S", 1.0)
    turn = Turn(evidence.root, evidence.home, evidence.setting, time.monotonic() + 2.5)
    child = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with pytest.raises(TimeUp):
        turn.command([sys.executable, "-c", child], "log")
    pid = int((evidence.home / "log").read_text().split()[0])
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"
    with pytest.raises(TimeUp):
        Turn(evidence.root, evidence.home, evidence.setting, time.monotonic()).command(["true"], "log")


def test_files_of_tests_that_have_ended_are_not_run_again(evidence: Evidence) -> None:
    place = evidence.root / "tests" / "gpu"
    place.mkdir(parents=True)
    (place / "test_one.py").write_text(
        "import pytest\npytestmark = pytest.mark.gpu\n"
        "def test_a(): pass\ndef test_b(): assert False\ndef test_c(): pytest.skip('no')\n"
    )
    (evidence.root / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    ended = evidence.take(Step("tests", "", gpu_tests), soon())
    assert ended.state == "failed"
    assert ended.reason == "test_one.py: 1 failed"
    assert dict(ended.found) == {"passed": 1, "failed": 1, "skipped": 1}
    (place / "test_one.py").write_text("broken")
    assert dict(evidence.take(Step("tests", "", gpu_tests), soon()).found) == dict(ended.found)
    (place / "test_two.py").write_text("def test_d(): pass")  # cut twice before
    (evidence.home / "tests" / "test_two.cut").write_bytes(b"..")
    assert "test_two.py did not end in 2 turns" in evidence.take(Step("tests", "", gpu_tests), soon()).reason


def test_what_begins_anew_in_each_turn_is_given_up(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.gpu.evidence.GRACE_S", 0.2)
    slow = Path(evidence.root, "false-python")
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr("tools.gpu.steps.PYTHON", str(slow))
    step = Step("kernels", "", partial(measured, "kernels"))
    assert evidence.take(step, time.monotonic()).state == "left"  # no time at all is no turn
    assert [evidence.take(step, time.monotonic() + 0.7).state for _ in range(3)] == ["left", "left", "failed"]
    ended = evidence.ended("kernels")
    assert ended is not None
    assert ended["reason"] == "did not end in 2 turns"
    evidence.forget("kernels")
    assert evidence.take(step, time.monotonic() + 0.7).state == "left"


def test_long_work_is_measured_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LONGEST_S", 0.05)
    done = []
    assert measure.seconds_of(lambda: done.append(time.sleep(0.04)), torch.device("cpu"), 50) >= 0.04
    assert 3 <= len(done) <= 4  # two before, and those that began in time
    assert measure.seconds_of(lambda: done.append(None), torch.device("cpu"), 5) < 0.04


def test_counts_of_a_report(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="2" errors="1" skipped="3"/></testsuites>')
    assert counts_of(report) == {"passed": 3, "failed": 2, "errors": 1, "skipped": 3}


def record(method: str, parts: int, **result: float) -> dict[str, Any]:
    phases = {"time_forward_s": 0.3, "time_sample_s": 0.1}
    return {
        "suite": "gpu-twin", "label": f"{method} P={parts}", "status": "ok",
        "config": {"method": {"name": method}, "partition": {"parts": parts}, "model": MODEL, "device": "cuda"},
        "dataset": {"nodes": 100, "edges": 1000, "features": 16, "classes": 4},
        "declared": METHODS.load(method).declared(), "environment": {"gpus": ["H"]},
        "ranks": [{"backend": "gloo" if parts > 1 else None}] * parts,
        "result": phases | {"epoch_time_s": 0.4, "residue": 0.01} | result,
    }  # fmt: skip


def test_bytes_that_an_epoch_moves_by_hand() -> None:
    """2 layers, 16 -> 8 -> 4, 100 nodes, 1000 edges: each product on the cheaper side, a row an entry."""
    first = 1000 * (16 + 1) * 4 + 100 * (8 + 16 * 4)  # (A H) W: 16 columns, forward only
    second = 1000 * (4 + 1) * 4 + 100 * (8 + 4 * 4)  # A (H W): 4 columns, both passes
    layers = 3 * 4 * (3 * 100 * 16 + 3 * 100 * 8)
    weights = 2 * (16 * 8 + 8) + (8 + 8) + 2 * (8 * 4) + 4  # own and neighbours' weights, bias, norm
    found = moved_bytes(MODEL, 100, 1000, 16, 4)
    assert found == pytest.approx(first + 2 * second + layers + 2 * 4 * 4 * weights, abs=2 * 4 * 4 * 16)


def test_goals_are_judged_on_a_gpu_only() -> None:
    rows = twin_rows([record("full", 1), record("full", 2), record("bns-gcn", 2)])
    moved = moved_bytes(MODEL, 100, 1000, 16, 4)
    found = {
        "machine": {"copy_bytes_s": moved / 0.2},  # 0.2 s at a copy's rate, and 0.4 s measured
        "twin": {"rows": rows},
        "kernels": {"host_batches_s": 100.0, "device_batches_s": 700.0},
    }
    judged = {goal.name: goal.judged(found, of_gpu=True) for goal in GOALS}
    assert {name: each["measured"] for name, each in judged.items()} == pytest.approx(
        {"roofline": 2.0, "sampling": 0.25, "bns-gcn": 1.0, "sampler": 7.0}
    )
    assert [each["state"] for each in judged.values()] == ["missed", "missed", "met", "met"]
    for goal in GOALS:
        assert goal.judged(found, of_gpu=False)["state"] == "not measured"
        assert goal.judged({}, of_gpu=True)["state"] == "not measured"
    assert GOALS[0].judged(found | {"twin": {"rows": twin_rows([record("full", 2)])}}, True)["state"] == "not measured"


def test_records_outside_the_bounds_are_told() -> None:
    big = 300 * 2**20
    records = [
        record("full", 1, memory_model_bytes=big, allocator_peak_bytes=big / 1.2, energy_gpu_j=40, gpu_power_w=100),
        record("roc", 1, memory_model_bytes=big, allocator_peak_bytes=big / 3, residue=0.05),
        record("full", 2, memory_model_bytes=10, allocator_peak_bytes=1000, energy_gpu_j=4, gpu_power_w=100),
        record("dgs", 1, epoch_time_s=0.001, residue=0.55),
    ]
    records[2]["ranks"][1] = {"backend": "nccl"}
    noisy = "load: noisy, others took 50% of the trial's cores (median) in 4 of 8 timed epochs"
    records.append(record("cagnet", 1, residue=0.5) | {"flags": [noisy]})  # nobody knows whose time that was
    # Half a millisecond a step may be between phases: 25 of the 400 here.
    records.append(record("ladies", 1, steps=50, residue=0.08))
    records.append(record("skewed", 1, steps=50, residue=0.09))
    records.append(record("pipegcn", 1, residue=-0.01))  # phases that cover more than the epoch
    grown = {"peak_above_base_bytes": big / 0.6 + 1e9, "mapped_bytes": 1e9}  # 0.6 without the mapped files
    records.append(record("vrgcn", 1, steps=20, residue=0.02, memory_model_bytes=big, **grown))
    records.append(record("fastgcn", 1, memory_model_bytes=big, allocator_peak_bytes=big / 2.1))
    found = checks(records)
    assert {name: (each["of"], each["outside"]) for name, each in found.items()} == {
        "closure": (9, ["gpu-twin: roc P=1", "gpu-twin: dgs P=1", "gpu-twin: skewed P=1", "gpu-twin: pipegcn P=1"]),
        "memory": (2, ["gpu-twin: roc P=1"]),
        "batches": (2, ["gpu-twin: fastgcn P=1"]),
        "energy": (2, ["gpu-twin: full P=2"]),
        "transport": (1, ["gpu-twin: full P=2"]),
    }
    assert found["memory"]["most"] == pytest.approx(3)
    assert found["batches"]["least"] == pytest.approx(0.6)
    assert model_ratio(records[0]) == pytest.approx(1.2)
    assert checks([]).keys() == found.keys()


def test_parts_are_made_that_the_suite_of_the_twin_asks_for() -> None:
    """Else each trial would make them in its own time."""
    suite = yaml.safe_load(TWIN.read_text())
    asked = dict(zip(PARTS[:-1:2], PARTS[1::2], strict=True))
    assert asked["--parts"] == ",".join(map(str, suite["partition"]["parts"]))
    assert asked["--method"] == suite["partition"]["method"]
    assert ("--transductive" in PARTS) is not suite["train"]["inductive"]
    assert suite["datasets"] == [{"twin": {"of": "reddit", "scale": 1.0}}]


def test_the_page_is_its_summarys() -> None:
    kept = json.loads((ROOT / "docs" / "gpu.json").read_text())
    assert page.render(kept) == (ROOT / "docs" / "gpu.md").read_text(), "run `python -m tools.gpu.page`"
    if kept["setting"] is None:
        assert kept == summary(None), "run `make gpu`, or write the summary of no evidence"
        assert all(goal["state"] == "not measured" for goal in kept["goals"])
    else:
        assert kept["setting"] == "cuda", "nothing but a full run on a GPU is published"


def test_a_missed_goal_is_on_the_page() -> None:
    told = summary(None)
    told["goals"][0] |= {"state": "missed", "measured": 2.345, "why": ""}
    assert "| at most 1.5 | 2.35 | missed |" in page.render(told)


def test_steps_are_found_by_name_in_their_order() -> None:
    assert [step.name for step in find(["twin", "machine"])] == ["machine", "twin"]
    assert find([]) == list(STEPS)
    with pytest.raises(KeyError):
        find(["twins"])


def gather(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.gpu", "--out", str(out), *more]
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}  # no engine to be measured
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        (["--device", "cpu", "--step", "twins"], "error: --step: no step 'twins' (one of machine, "),
        (["--device", "tpu"], "error: --device: 'tpu' (cpu or cuda)"),
    ):
        done = gather(tmp_path, *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith(message)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_from_end_to_end_without_a_gpu(tmp_path: Path) -> None:
    """The machine, the tests (skipped), products and a suite; a second call does nothing again but the checks."""
    names = ("machine", "kernels", "quickstart", "checks")
    wanted = [word for name in names for word in ("--step", name)]
    left = gather(tmp_path, "--device", "cpu", "--quick", "--minutes", "0", *wanted)
    assert left.returncode == 3
    assert left.stdout.count("not run") == 3  # checks need no time
    done = gather(tmp_path, "--device", "cpu", "--quick", *wanted)
    assert done.returncode == 3, done.stdout + done.stderr  # twin and the others are left
    told = json.loads((tmp_path / "cpu-quick" / "summary.json").read_text())
    states = {step["name"]: step["state"] for step in told["steps"]}
    assert [states[name] for name in names] == ["ok"] * 4, done.stdout
    assert told["machine"]["copy_bytes_s"] > 1e8
    assert {row["engine"] for row in told["products"]} >= {"torch.sparse.mm", "torch", "numba"}
    assert all(row["error"] < 1e-5 for row in told["products"])
    assert {goal["state"] for goal in told["goals"]} == {"not measured"}
    assert told["checks"]["transport"]["of"] > 0
