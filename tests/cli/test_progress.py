"""What a run prints, with a clock that the test moves."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from harness.cli.progress import Bars, Latest, Lines, NotebookTable, outcome_text, view
from harness.cli.terminal import bytes_text, seconds_text
from harness.models.layer import ModelSpec
from harness.results.record import Record
from harness.runtime.run_config import TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.schema import MethodSpec, TrialConfig


def trial() -> TrialConfig:
    return TrialConfig(
        dataset=DatasetSpec(name="digits"),
        model=ModelSpec(),
        train=TrainSpec(),
        partition=PartitionSpec(parts=2),
        method=MethodSpec(name="full"),
        seed=0,
        device="cpu",
    )


def record(status: str = "ok", reason: str | None = None, **result: float) -> Record:
    return Record.model_validate(
        {"trial": "0123", "suite": "s", "label": "digits sage full", "status": status, "reason": reason}
        | {"started": "2025-01-01T00:00:00+00:00", "wall_s": 83.4, "config": {}, "result": result}
    )


def epoch(number: int, **more: float) -> dict:
    return {"event": "epoch", "epoch": number, "epochs": 100, "loss": 0.5, "s_per_epoch": 0.0123} | more


def test_lines_are_at_most_one_in_five_seconds() -> None:
    lines: list[str] = []
    now = 0.0
    view = Lines(lines.append, lambda: now)
    view.suite_started(3, 1)
    view.trial_started(2, trial())
    view.trial_stage("preparing digits")
    for i in range(100):
        now = i * 0.12
        view.trial_event(epoch(i, val=0.25) if i == 10 else epoch(i, val=None))
    view.trial_finished(2, record(epoch_time_s=0.01234, best_val=0.9, test_at_best_val=0.85))
    assert lines == [
        "3 trials, 1 done already, 2 to run",
        "[2/3] digits sage-2x64 full P=2 seed=0",
        "    preparing digits",
        "    epoch 43/100  loss 0.5000  val 0.2500  0.0123 s/epoch",
        "    epoch 85/100  loss 0.5000  val 0.2500  0.0123 s/epoch",
        "    ok  0.0123 s/epoch  val 0.9000  test 0.8500  (1 min 23 s)",
    ]


def test_lines_say_once_what_is_counted() -> None:
    lines: list[str] = []
    view = Lines(lines.append, lambda: 0.0)
    for text in ("compiling ░░ 0/2 full", "full is not compiled", "compiling █░ 1/2 roc", "compiled", "compiled"):
        view.trial_stage(text)
    view.trial_stage("counting ░░ 0/2")
    assert [line.strip() for line in lines] == ["compiling", "full is not compiled", "compiled", "compiled", "counting"]


def test_flags_are_named_at_the_end_of_a_trial() -> None:
    flagged = record().model_copy(update={"flags": ["cores: 2 of 1 (ranks [0])", "cores: 3 of 1 (ranks [1])"]})
    assert outcome_text(flagged) == "ok  (1 min 23 s)  flagged: cores"


def test_a_stage_is_shown_until_another_event() -> None:
    lines: list[str] = []
    now = 0.0
    view = Lines(lines.append, lambda: now)
    view.suite_started(1, 0)
    view.trial_started(1, trial())
    for event in ({"event": "stage", "text": "counted 256 of 300"}, {"event": "setup"}, epoch(0)):
        now += 6
        view.trial_event(event)
    assert lines[2:] == ["    counted 256 of 300", "    epoch 1/100  loss 0.5000  0.0123 s/epoch"]


def test_the_time_of_an_epoch_is_the_slowest_ranks() -> None:
    latest = Latest()
    for event in (epoch(0, s_per_epoch=3.0), epoch(0, s_per_epoch=5.0), epoch(0, s_per_epoch=4.0)):
        latest.take(event)
    assert latest.values["s_per_epoch"] == 5.0
    latest.take(epoch(1, s_per_epoch=2.0))
    assert latest.values["s_per_epoch"] == 2.0


def test_an_end_with_a_reason() -> None:
    assert outcome_text(record("error", "rank 1 was killed")) == "error  (1 min 23 s): rank 1 was killed"
    skipped = "skipped: reddit is not here; get it with: harness data get reddit"
    assert outcome_text(record("skipped", skipped.removeprefix("skipped: "))) == skipped


def test_figures_of_another_shape_do_no_harm() -> None:
    latest = Latest()
    latest.take({})
    latest.take({"event": "setup", "epoch": 0, "epochs": None, "loss": None})
    assert (latest.text(), latest.epoch) == ("", 0)


def test_bars_keep_a_line_for_each_trial() -> None:
    stream = io.StringIO()
    with Bars(console=Console(file=stream, force_terminal=True, width=140)) as view:
        view.suite_started(2, 0)
        view.trial_started(1, trial())
        view.trial_stage("preparing digits")
        view.trial_event({"event": "stage", "text": "counted 256 of 300"})
        view.trial_event(epoch(3))
        view.trial_finished(1, record("oom", "out [red]of memory"))
        view.trial_started(2, trial())
    assert "digits sage full  oom  (1 min 23 s): out [red]of memory" in _plain(stream.getvalue())


def test_bars_are_two_lines_with_count_time_left_trial_and_epoch() -> None:
    now = 0.0
    view = Bars(lambda: now, console=Console(file=io.StringIO()))
    view.suite_started(5, 1)
    view.trial_started(2, trial())
    assert view.lines(79) == ["1/5 trials ██░░░░░░░░░░  0.0 s so far", "digits sage-2x64 full P=2 seed=0  starting"]
    now = 10.0
    view.trial_stage("partitioning digits into 2")
    assert view.lines(79)[1] == "digits sage-2x64 full P=2 seed=0  partitioning digits into 2"
    view.trial_event(epoch(49))
    assert view.lines(100) == [
        "1/5 trials ██░░░░░░░░░░  1 min 10 s left  10.0 s so far",  # half of one trial of four
        "digits sage-2x64 full P=2 seed=0  epoch 50/100  ██████░░░░░░  10.0 s left  loss 0.5000",
    ]
    now = 20.0
    view.trial_finished(2, record("error", "rank 1 was killed"))
    assert view.lines(79) == ["2/5 trials █████░░░░░░░  1 min 00 s left  1 failed  20.0 s so far"]


@pytest.mark.parametrize("room", [40, 60, 79, 120])
def test_bars_break_no_word(room: int) -> None:
    view = Bars(lambda: 50.0, console=Console(file=io.StringIO()))
    view.suite_started(1000, 1)
    view.trial_started(2, trial())
    view.trial_event(epoch(49, val=0.25))
    suite, one = view.lines(room)
    assert len(suite) <= room
    assert len(one) <= room
    assert suite.startswith("1/1000 trials ")
    whole = f"digits sage-2x64 full P=2 seed=0 … epoch 50/100 {view.lines(500)[1]}".split()
    assert set(one.split()) <= set(whole)
    assert {"seed=0", "50/100"} <= set(one.split())


def test_a_notebook_has_a_table_that_renews_itself() -> None:
    shown: list[str] = []
    now = 0.0
    view = NotebookTable(lambda: now, show=shown.append)
    view.suite_started(60, 10)
    view.trial_started(11, trial())
    view.trial_stage("preparing <digits>")
    for i in range(100):
        now = i * 0.01
        view.trial_event(epoch(i, val=0.25))
    assert len(shown) == 2 + 1  # of 100 events in a second, one in half a second
    assert "preparing &lt;digits&gt;" in shown[1]
    assert "<td>digits sage-2x64 full P=2 seed=0</td><td>epoch 51/100" in shown[-1]
    view.trial_finished(11, record("error", "<script>"))
    assert "11/60 trials" in shown[-1]
    assert "<td>error  (1 min 23 s): &lt;script&gt;</td>" in shown[-1]
    for number in range(12, 60):
        view.trial_finished(number, record())
    assert "9 earlier trials are not shown" in shown[-1]
    assert shown[-1].count("<tr>") == 40
    view.suite_waits("waits for a quiet machine")
    assert "waits for a quiet machine" in shown[-1]


def test_a_notebook_is_known_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = SimpleNamespace(update=lambda html: drawn.append(html))
    drawn: list[str] = []
    display = ModuleType("IPython.display")
    display.HTML, display.display = str, lambda html, display_id: handle
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with view() as progress:
        progress.suite_started(1, 0)
        progress.trial_started(1, trial())
    assert len(drawn) == 1
    assert "0/1 trial " in drawn[0]
    ipython.get_ipython = lambda: SimpleNamespace()  # IPython in a terminal
    with view() as progress:
        assert isinstance(progress, Lines)


def _plain(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**30, "3 GiB"), (2**50, "1.02e+03 TiB")]
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.25, "1.2 s"), (59.9, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
