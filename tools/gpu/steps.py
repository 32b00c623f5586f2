"""The steps of the evidence, in their order: what each runs, and what of it is kept."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools.gpu.checks import checks, read_records, twin_rows
from tools.gpu.evidence import Outcome, Step, TimeUp, Turn

PYTHON = sys.executable
TWIN = Path(__file__).with_name("twin.yaml")
INTERRUPTED = 130
PARTS = ("--parts", "1,2", "--method", "metis", "--transductive")  # as in twin.yaml
TURNS = 2  # of what begins anew in each, before it is given up: it would go on for ever
# Small sizes, to try the commands; lists are of `harness run`.
QUICK = {
    "quickstart": [
        *("--only", "seed=0,method=full|bns-gcn|graphsage", "--set", "datasets.0.twin.scale=0.01"),
        *("--set", "train.epochs=4"),
    ],
    "anchor": ["--set", "train.epochs=4"],
    "gpu-twin": [
        *("--set", "datasets.0.twin.scale=0.01", "--set", "train.epochs=4", "--set", "train.threads=1"),
        *("--set", "model.hidden=32", "--set", "methods.12.clustergcn.clusters=20"),
        *("--set", "methods.12.clustergcn.per_batch=2", "--set", "methods.13.graphsaint.size=400"),
        *("--set", "methods.13.graphsaint.frontier=50"),
    ],
}


def measured(what: str, turn: Turn) -> Outcome:
    """Run `tools.gpu.measure` and keep what it prints."""
    more = ["--quick"] if turn.setting.quick else []
    command = [PYTHON, "-m", "tools.gpu.measure", what, turn.setting.device, *more]
    if (code := in_turns(turn, command, f"{what}.log", turn.home / f"{what}.cut")) is None:
        return Outcome("failed", f"did not end in {TURNS} turns")
    said = turn.log_tail(f"{what}.log")
    return Outcome("ok", found=json.loads(said)) if code == 0 else Outcome("failed", said)


# A host's epochs of the full-size twin take minutes: two of them, in a turn's time, on the threads that there are.
CPU = {"gpu-twin": ["--set", "train.epochs=2", "--set", "train.threads=null", "--set", "timeouts.collective_s=400"]}


def in_turns(turn: Turn, command: Sequence[str | Path], log: str, cuts: Path) -> int | None:
    """Run a command that begins anew in each turn; return its exit code, None without a run after `TURNS` turns.

    `cuts` is the file that counts those in which it was cut off.
    """
    if cuts.is_file() and cuts.stat().st_size >= TURNS:
        return None
    if turn.left_s <= 0:
        raise TimeUp  # that is no turn
    try:
        return turn.command(command, log)
    except TimeUp:
        with cuts.open("ab") as counted:
            counted.write(b".")
        raise


def gpu_tests(turn: Turn) -> Outcome:
    """Run the tests that need a GPU, file by file; the report of each is kept as JUnit's XML."""
    place = turn.home / "tests"
    place.mkdir(exist_ok=True)
    counts, problems = Counter[str](), list[str]()
    for file in sorted((turn.root / "tests" / "gpu").glob("test_*.py")):
        report, cut = place / f"{file.stem}.xml", place / f"{file.stem}.cut"
        if not report.is_file() and not _run_tests(turn, file, report, cut):
            problems.append(f"{file.name} did not end in {TURNS} turns")
            continue
        if not report.is_file():
            problems.append(f"{file.name}: {turn.log_tail('tests.log')}")
            continue
        own = counts_of(report)
        counts += own
        problems += [f"{file.name}: {own[kind]} {kind}" for kind in ("failed", "errors") if own[kind]]
    return Outcome("failed" if problems else "ok", "; ".join(problems), dict(counts))


def _run_tests(turn: Turn, file: Path, report: Path, cut: Path) -> bool:
    """Run a file of tests; its report is there only if it came to its end. Returns whether it had a turn."""
    # Each test of training starts processes of its own; what meters read is of one test alone.
    many = "test_training" in file.name and importlib.util.find_spec("xdist") and turn.setting.device == "cuda"
    beside = ["-n", str(min(4, os.cpu_count() or 1))] if many else []
    part = report.with_suffix(".part")
    command = [PYTHON, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *beside]
    code = in_turns(turn, [*command, f"--junit-xml={part}", file], "tests.log", cut)
    if part.is_file():
        part.rename(report)
    return code is not None


def counts_of(report: Path) -> Counter[str]:
    """Return how many tests of a JUnit report passed, failed, were errors, and were skipped."""
    found = Counter[str]()
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        tests, failed, errors, skipped = (int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped"))
        found += Counter(
            {"passed": tests - failed - errors - skipped, "failed": failed, "errors": errors, "skipped": skipped}
        )
    return found


def data(turn: Turn) -> Outcome:
    """Make the twin and the parts that its suite asks for, which the cache keeps: no trial's turn is cut for them."""
    scale = "0.01" if turn.setting.quick else "1.0"
    twin = ["twin", "-o", "of=reddit", "-o", f"scale={scale}"]
    code = turn.command([PYTHON, "-m", "harness", "partition", *twin, *PARTS], "data.log")
    return Outcome("ok") if code == 0 else Outcome("failed", turn.log_tail("data.log"))


def suite(name: str, file: str | Path, turn: Turn) -> Outcome:
    """Run a suite, or go on with it; every trial that has ended is kept."""
    setting = turn.setting
    more: Sequence[str] = QUICK[name] if setting.quick else CPU.get(name, ()) if setting.device == "cpu" else ()
    results: list[str | Path] = ["--results", turn.home / "results", "--device", setting.device, "--jobs", "1"]
    code = turn.command([PYTHON, "-m", "harness", "run", file, *results, *more], f"{name}.log")
    if code == INTERRUPTED:
        raise TimeUp
    records = [record for record in read_records(turn.home / "results") if record["suite"] == name]
    statuses = Counter(record["status"] for record in records)
    if code not in (0, 1) or not records:
        return Outcome("failed", turn.log_tail(f"{name}.log"))
    bad = {status: count for status, count in statuses.items() if status != "ok"}
    found = {"statuses": dict(statuses)} | ({"rows": twin_rows(records)} if name == "gpu-twin" else {})
    reason = ", ".join(f"{count} {status}" for status, count in bad.items())
    return Outcome("failed" if bad else "ok", reason, found)


def anchor(turn: Turn) -> Outcome:
    """Run the suite whose speed public codes set; its graph is not shipped."""
    file = Path(os.environ.get("HARNESS_DATA", "."), "case50k.npz")
    if not file.is_file():
        return Outcome("skipped", "needs case50k.npz and case50k.part2.npy in HARNESS_DATA")
    return suite("anchor", "anchor", turn)


def checked(turn: Turn) -> Outcome:
    """Hold the records of the suites against what the project claims."""
    found = checks(read_records(turn.home / "results"))
    wrong = [f"{name}: {each['wrong']} of {each['of']}" for name, each in found.items() if each["wrong"]]
    held = not turn.setting.quick  # a few short epochs of tiny graphs are within no bounds
    return Outcome("failed" if wrong and held else "ok", "; ".join(wrong), found)


STEPS = (
    Step("machine", "The machine, its clocks, and what copies reach", partial(measured, "machine")),
    Step("tests", "Tests that need a GPU", gpu_tests),
    Step("kernels", "Products beside torch's and a copy; batches of neighbours", partial(measured, "kernels")),
    Step("quickstart", "The suite `quickstart`", partial(suite, "quickstart", "quickstart")),
    Step("anchor", "The suite `anchor`", anchor),
    Step("data", "Reddit's twin and its parts", data),
    Step("twin", "Every method on Reddit's twin, one rank and two", partial(suite, "gpu-twin", TWIN)),
    Step("checks", "Memory, closure of phases, energy and transport of all records", checked, always=True),
)


def find(names: Sequence[str]) -> list[Step]:
    """Return the steps of these names in their order, all without any; KeyError for a name that is none."""
    known: dict[str, Any] = {step.name: step for step in STEPS}
    if unknown := [name for name in names if name not in known]:
        raise KeyError(unknown[0])
    return [step for step in STEPS if not names or step.name in names]
