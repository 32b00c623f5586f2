"""Figures that other processes draw: the same, whatever becomes of those."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report.fake import METHODS, write_results
from report.measured import FULL, one_section

from harness.registry import find_plugins
from harness.report import beside, write_report
from harness.report.beside import Painters, draw, painters
from harness.report.plot import Picture, Plot
from harness.report.views.time import EpochTimeView

PLUGIN = '''
from dataclasses import replace

from harness.report.plot import Entry
from harness.report.views.time import EpochTimeView


class Again(EpochTimeView):
    """A figure of a plugin's."""

    name = "again"
    title = "Epoch time, again"

    def figure(self):
        plot = super().figure()
        class Own:
            label, method = "own", "own"

        own = Entry("own", plot.entries[0].style, of=Own())
        return replace(plot, name=f"{self.section.anchor}-again", entries=(own, *plot.entries))
'''
FORMATS = ("html", "md", "csv", "svg", "pdf-figures")  # figures of a screen and of print


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(
        tmp_path_factory.mktemp("beside"), methods=(FULL, METHODS[0]), parts=(2,), seeds=(0, 1), epochs=6
    )


@pytest.fixture(scope="module")
def plot(root: Path) -> Plot:
    found = EpochTimeView(one_section(root)).figure()
    assert found
    return found


def files(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_report_is_the_same(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "views.py").write_text(PLUGIN)
    plugins = find_plugins([str(tmp_path / "views.py")])
    write_report(root, tmp_path / "alone", FORMATS, plugins=plugins)
    here: list[str] = []

    def figure(plot: Plot) -> Picture:
        here.append(plot.name)
        return drawn(plot)

    drawn = beside._figure
    monkeypatch.setattr(beside, "_figure", figure)
    monkeypatch.setattr(Painters, "help", lambda self: None)  # the processes draw all that they can
    write_report(root, tmp_path / "beside", FORMATS, plugins=plugins, beside=2)
    assert here == ["digits-sage-again"] * 2  # what cannot be told to another process
    expected = files(tmp_path / "alone")
    assert len(expected) > 40
    assert files(tmp_path / "beside") == expected


def test_what_no_process_has_begun_is_drawn_here(plot: Plot) -> None:
    own = Painters(1)
    try:
        (process,) = own._all
        process.send_signal(signal.SIGSTOP)
        first, *others = [own.begin(plot) for _ in range(3)]
        pictures = [each.get() for each in others]  # or this waits for ever
        process.send_signal(signal.SIGCONT)
        pictures.append(first.get())
    finally:
        own.end()
    assert [picture and picture.svg for picture in pictures] == [drawn(plot)] * 3


def drawn(plot: Plot) -> bytes:
    picture = draw(plot)
    assert isinstance(picture, Picture)
    return picture.svg


@pytest.mark.parametrize("before", [True, False], ids=["before it draws", "while it draws"])
def test_a_process_that_is_killed(plot: Plot, before: bool) -> None:
    own = Painters(1)
    try:
        begun = [] if before else [own.begin(plot)]
        for process in own._all:
            process.kill()
        begun += [own.begin(plot) for _ in range(2)]
        pictures = [each.get() for each in begun]
    finally:
        own.end()
    assert [picture and picture.svg for picture in pictures] == [drawn(plot)] * len(pictures)


def test_a_mistake_is_raised_where_it_can_be_seen(plot: Plot) -> None:
    own = Painters(1)
    try:
        with pytest.raises(ValueError, match="empty"):
            own.begin(replace(plot, rows=())).get()
    finally:
        own.end()


def test_the_processes_end_with_the_report(plot: Plot) -> None:
    with pytest.raises(KeyboardInterrupt), painters(2):  # noqa: PT012, what is interrupted
        draw(plot)
        found = beside._PAINTERS.get()
        raise KeyboardInterrupt
    assert found
    assert [process.poll() is not None for process in found._all] == [True, True]
    assert beside._PAINTERS.get() is None


def test_what_draws_imports_no_torch() -> None:
    script = (
        "import sys\nfrom harness.report.views import VIEWS\n"
        "for name in VIEWS.names(): VIEWS.load(name)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
