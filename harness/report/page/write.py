"""Writing a report: the files of each format."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.errors import UserError, nearest
from harness.report.export.camera_ready import camera_ready
from harness.report.export.latex import CAMERA_READY, latex_files
from harness.report.page.build import Report
from harness.report.page.csv import to_csv
from harness.report.page.render import render_html, render_markdown
from harness.report.trials.inputs import Inputs

PAGE = "index.html"
TEXT = "report.md"
Screen = Callable[[], Report]


def check_formats(formats: Sequence[str]) -> None:
    """Raise a UserError if there are none, or one is not known."""
    for name in formats:
        if name not in WRITERS:
            raise UserError(f"no format '{name}'", key="--format", fix=nearest(name, WRITERS))
    if not formats:
        raise UserError("names no format", key="--format", fix=f"known: {', '.join(WRITERS)}")


def write_files(make: Callable[[], Report], inputs: Inputs, out: Path, formats: Sequence[str]) -> Path:
    """Write a report into `out` (made if absent) and return its page, else its Markdown, else `out`.

    `make` draws the figures as a screen shows them: it is called once, and not for a format without them.
    """
    report = functools.cache(make)
    for name in dict.fromkeys(formats):
        WRITERS[name](report, inputs, out)
    main = {"html": PAGE, "md": TEXT}
    return next((out / file for name, file in main.items() if name in formats), out)


def _write_page(report: Screen, _: Inputs, out: Path) -> None:
    _write(out / PAGE, render_html(report()).encode())


def _write_markdown(report: Screen, _: Inputs, out: Path) -> None:
    for picture in report().pictures:
        _write(out / "figures" / f"{picture.name}.svg", picture.svg)
    _write(out / TEXT, render_markdown(report()).encode())


def _write_csv(report: Screen, inputs: Inputs, out: Path) -> None:
    """Write what the report is made from, and the numbers that each figure shows."""
    _write(out / "results.csv", to_csv(inputs.results))
    _write(out / "epochs.csv", to_csv(inputs.epochs))
    for picture in report().pictures:
        _write(out / "figures" / f"{picture.name}.csv", to_csv(picture.data))
    if networks := report().networks:
        compared = pd.concat([network.frame for network in networks], ignore_index=True)
        _write(out / "network.csv", to_csv(compared))


def _write_latex(report: Screen, _: Inputs, out: Path) -> None:
    for name, text in latex_files(report()).items():
        _write(out / "latex" / name, text.encode())


def _write_figures(_: Screen, inputs: Inputs, out: Path) -> None:
    """Write each figure as a paper prints it."""
    for picture in camera_ready(inputs):
        _write(out / CAMERA_READY / f"{picture.name}.pdf", picture.pdf)
        _write(out / CAMERA_READY / f"{picture.name}.svg", picture.svg)


WRITERS: Mapping[str, Callable[[Screen, Inputs, Path], None]] = {
    "html": _write_page,
    "md": _write_markdown,
    "csv": _write_csv,
    "latex": _write_latex,
    "pdf-figures": _write_figures,
}


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
