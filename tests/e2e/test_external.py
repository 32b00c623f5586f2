"""Commands that train next to the methods: their epochs and scores are kept, and stay apart."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, blocks
from e2e.cli import CommandLine, records

import harness
from harness.errors import UserError
from harness.results.frames import load_inputs

pytestmark = pytest.mark.timeout(240)

# Two ranks that talk through torch.distributed; the second is slower, and says what part of the graph it has.
PAIR = """\
import os, time, numpy as np, torch, torch.distributed as dist
dist.init_process_group("gloo")
own = torch.tensor([float((np.load(os.environ["HARNESS_PARTS"]) == dist.get_rank()).sum())])
dist.all_reduce(own)
for epoch in range(3):
    print(f"epoch {epoch} took {0.5 + dist.get_rank()} s, loss {own.item()}", flush=True)
    print(f"val {0.5 + epoch / 10:.1f} test 0.25", flush=True)
"""
PATTERN = "epoch (?P<epoch>[0-9]+) took (?P<time_s>[0-9.]+) s, loss (?P<loss>[0-9.]+)|"
PATTERN += "val (?P<val>[0-9.]+) test (?P<test>[0-9.]+)"
LINE = {"epoch": 1, "val": 0.9}
FAILING = {  # by what is wrong: the command, status and reason
    "code": ("python -c 'print(7); raise SystemExit(3)'", "error", "the command ended with 3: 7"),
    "absent": ("no-such-command --fast", "error", "cannot run 'no-such-command': No such file or directory"),
    "silent": ("echo hello", "error", "the command printed no epoch"),
    "percent": (f"echo '{json.dumps(LINE | {'val': 93.2})}'", "invalid", "val 93.2: expected a share, from 0 to 1"),
    "text": (f"echo '{json.dumps(LINE | {'time_s': 'long'})}'", "invalid", "time_s 'long': expected seconds above 0"),
}


def suite(name: str, methods: str, parts: int = 1) -> str:
    return f"""\
name: {name}
datasets: [digits]
model: {{name: sage, layers: 2, hidden: 8}}
train: {{epochs: 6, eval_every: 1, warmup: 1, threads: 1}}
partition: {{parts: {parts}}}
plugins: harness_methods.external
device: cpu
methods:
{methods}
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    directory = tmp_path_factory.mktemp("external")
    here = Path(sys.executable).parent
    path = f"{here}:{os.environ['PATH']}"
    return CommandLine(directory, directory / "cache", {"PATH": path})


def run(command: CommandLine, text: str, code: int = 0) -> tuple[str, dict[str, dict[str, Any]]]:
    (command.directory / "suite.yaml").write_text(text)
    done = command.run("run", "suite.yaml", "--results", "out")
    assert done.returncode == code, done.stdout + done.stderr
    name = text.split()[1]
    found = records(command.directory / "out" / name)
    return done.stdout, {each["config"]["method"]["options"].get("name", "full"): each for each in found.values()}


@pytest.mark.slow
def test_a_script_is_shown_apart_from_the_methods(command: CommandLine) -> None:
    pytest.importorskip("torch_geometric")
    (script,) = blocks(DOCS / "external.md", "python")
    (command.directory / "pyg_sage.py").write_text(script)
    entry = "  - full\n  - external: {name: a script, command: python pyg_sage.py}"
    _, found = run(command, suite("script", entry))
    own = found["a script"]
    assert own["status"] == "ok"
    assert own["result"]["epochs"] == 6
    assert 0 < own["result"]["epoch_time_s"] < 5
    assert own["result"]["best_val"] > 0.3
    assert own["result"]["peak_memory_bytes"] > 100e6
    assert own["result"]["setup_bytes"] is None
    assert own["flags"] == []
    home = command.directory / "out" / "script"
    inputs = load_inputs(home)
    assert set(inputs.results["method"]) == {"full"}
    assert inputs.whole is not None
    assert set(inputs.whole.results["method"]) == {"full", "external"}
    report = command.run("report", "out/script", "--out", "page", "--format", "html,md,latex")
    assert report.returncode == 0, report.stderr
    text = (command.directory / "page" / "report.md").read_text()
    table = text.partition("## Trained by commands")[2].partition("##")[0]
    assert "| a script † |" in table
    assert "| full |" in table
    assert "a script" not in text.replace(table, "")
    assert "2 trials, all ended well" in text
    assert "Trained by commands" in (command.directory / "page" / "index.html").read_text()
    assert "a script" in (command.directory / "page" / "latex" / "external.tex").read_text()


@pytest.mark.slow
def test_ranks_find_each_other_and_an_epoch_lasts_as_long_as_the_slowest(command: CommandLine) -> None:
    (command.directory / "pair.py").write_text(PAIR)
    options = json.dumps({"name": "pair", "command": "python pair.py", "pattern": PATTERN})
    _, found = run(command, suite("pair", f"  - external: {options}", parts=2))
    result = found["pair"]["result"]
    assert found["pair"]["status"] == "ok", found["pair"]["reason"]
    assert result["epoch_time_s"] == 1.5
    assert (result["best_val"], result["test_at_best_val"], result["best_epoch"]) == (0.7, 0.25, 2)
    epochs = harness.load_epochs(command.directory / "out" / "pair")
    assert epochs["loss"].unique().tolist() == [1797.0]  # all nodes, of both ranks
    assert sorted(epochs["val_score"].unique()) == [0.5, 0.6, 0.7]
    report = command.run("report", "out/pair", "--out", "alone", "--format", "md")
    assert report.returncode == 0, report.stderr
    assert "| pair † |" in (command.directory / "alone" / "report.md").read_text()


@pytest.mark.slow
def test_what_fails_says_why(command: CommandLine) -> None:
    entries = "\n".join(
        f"  - external: {json.dumps({'name': name, 'command': line})}" for name, (line, *_) in FAILING.items()
    )
    _, found = run(command, suite("failing", entries), code=1)
    for name, (_, status, reason) in FAILING.items():
        assert found[name]["status"] == status, name
        assert reason in found[name]["reason"], name
    report = command.run("report", "out/failing", "--out", "failed", "--format", "md")
    assert report.returncode == 0, report.stderr
    text = (command.directory / "failed" / "report.md").read_text()
    assert "5 of 5 trials did not end well" in text
    assert "ended with 3: 7" in text


@pytest.mark.slow
def test_epochs_without_seconds_last_from_line_to_line(command: CommandLine) -> None:
    lines = "; ".join(f"""echo '{json.dumps({"epoch": e, "val": 0.5})}'; sleep 0.2""" for e in range(4))
    (command.directory / "slow.sh").write_text(lines)
    _, found = run(command, suite("slow", "  - external: {name: slow, command: sh slow.sh}"))
    assert 0.2 <= found["slow"]["result"]["epoch_time_s"] < 2
    assert found["slow"]["flags"] == [
        "external: its epochs last from line to line, evaluations included: its lines have no time_s (ranks [0])"
    ]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("{name: x}", "external.command: missing"),
        ("{command: \"python 'x\"}", "No closing quotation"),
        ("{command: x, pattern: '('}", "no regular expression"),
        ("{command: x, pattern: 'val'}", "has none of the groups epoch"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_one_line(options: str, why: str, command: CommandLine) -> None:
    (command.directory / "bad.yaml").write_text(suite("bad", f"  - external: {options}"))
    done = command.run("plan", "bad.yaml", "--trust-plugins")
    assert done.returncode == 2, done.stdout
    assert why in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_nothing_of_a_command_is_checked() -> None:
    from harness.check import check_method

    with pytest.raises(UserError, match="external runs a command, of which nothing can be checked"):
        check_method("external", plugin="harness_methods.external")
