"""Figures that render workers draw: the same as without them, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from report.fake import METHODS, write_results
from report.measured import FULL, one_section

from harness.report import render_workers, write_report
from harness.report.figure import Figure
from harness.report.views.time import EpochTimeView
from harness.report.write import draw_all

FORMATS = ("html", "md", "csv", "svg", "pdf-figures")  # figures of a screen and of print


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(
        tmp_path_factory.mktemp("workers"), methods=(FULL, METHODS[0]), parts=(2,), seeds=(0, 1), epochs=6
    )


@pytest.fixture(scope="module")
def figure(root: Path) -> Figure:
    found = EpochTimeView(one_section(root)).figure()
    assert isinstance(found, Figure)
    return found


def files(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_report_is_the_same(root: Path, tmp_path: Path) -> None:
    write_report(root, tmp_path / "alone", FORMATS)
    write_report(root, tmp_path / "workers", FORMATS, workers=1)
    expected = files(tmp_path / "alone")
    assert len(expected) > 40
    assert files(tmp_path / "workers") == expected


@pytest.mark.slow
def test_a_worker_that_is_killed(figure: Figure) -> None:
    alone = list(draw_all([figure], "svg", None))
    with render_workers(1) as pool:
        assert isinstance(pool, ProcessPoolExecutor)
        pool.submit(int).result()
        for process in pool._processes:
            os.kill(process, signal.SIGKILL)
        assert list(draw_all([figure], "svg", pool)) == alone


@pytest.mark.slow
def test_what_draws_imports_no_torch() -> None:
    script = (
        "import sys\nfrom harness.report.views import VIEWS\n"
        "for name in VIEWS.names(): VIEWS.load(name)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
