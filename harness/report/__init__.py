"""The files of a report, by format."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pandas as pd

from harness.errors import UserError, nearest
from harness.report.drawing import PRINT, Picture, style
from harness.report.latex import CAMERA_READY, latex_files
from harness.report.page import Report, render_html, render_markdown, to_csv
from harness.results.frames import ResultInputs

if TYPE_CHECKING:
    from harness.registry import PluginKey
    from harness.results.store import KeptSuite
    from harness.spec import PluginSource


PAGE = "index.html"
TEXT = "report.md"


class Material:
    """What the formats are written from.

    Args:
        make: puts the report together, its figures in the style of where it is called.
        inputs: what it is made from.
    """

    def __init__(self, make: Callable[[], Report], inputs: ResultInputs) -> None:
        self._make, self.inputs = make, inputs

    @functools.cached_property
    def report(self) -> Report:
        """The report for a screen; not made for a format without it."""
        return self._make()

    def printed(self) -> list[Picture]:
        """Return the figures as PDF and SVG, a column or two wide, without titles."""
        with style(PRINT):
            return self._make().pictures


def check_formats(formats: Sequence[str]) -> None:
    """Raise a UserError if there are none, or one is not known."""
    for name in formats:
        if name not in WRITERS:
            raise UserError(f"no format '{name}'", key="--format", fix=nearest(name, WRITERS))
    if not formats:
        raise UserError("names no format", key="--format", fix=f"known: {', '.join(WRITERS)}")


def write_files(material: Material, out: Path, formats: Sequence[str]) -> Path:
    """Write a report into `out` (made if absent) and return its page, else its Markdown, else `out`."""
    for name in dict.fromkeys(formats):
        WRITERS[name](material, out)
    main = {"html": PAGE, "md": TEXT}
    return next((out / file for name, file in main.items() if name in formats), out)


def _write_page(material: Material, out: Path) -> None:
    _write(out / PAGE, render_html(material.report).encode())


def _write_markdown(material: Material, out: Path) -> None:
    for picture in material.report.pictures:
        _write(out / "figures" / f"{picture.name}.svg", picture.svg)
    _write(out / TEXT, render_markdown(material.report).encode())


def _write_csv(material: Material, out: Path) -> None:
    """Write what the report is made from, and the numbers that each figure shows."""
    _write(out / "results.csv", to_csv(material.inputs.results))
    _write(out / "epochs.csv", to_csv(material.inputs.epochs))
    for picture in material.report.pictures:
        _write(out / "figures" / f"{picture.name}.csv", to_csv(picture.data))
    if networks := material.report.networks:
        compared = pd.concat([network.frame for network in networks], ignore_index=True)
        _write(out / "network.csv", to_csv(compared))


def _write_latex(material: Material, out: Path) -> None:
    for name, text in latex_files(material.report).items():
        _write(out / "latex" / name, text.encode())


def _write_figures(material: Material, out: Path) -> None:
    """Write each figure as a paper prints it."""
    for picture in material.printed():
        _write(out / CAMERA_READY / f"{picture.name}.pdf", picture.pdf)
        _write(out / CAMERA_READY / f"{picture.name}.svg", picture.svg)


WRITERS: Mapping[str, Callable[[Material, Path], None]] = {
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


FORMATS = ("html", "md", "csv")  # that are written unless others are asked for
_LONGEST = 100  # characters of a directory that is named after several


def write_report(
    results: Path | Sequence[Path],
    out: Path | None = None,
    formats: Sequence[str] = FORMATS,
    suites: Sequence[KeptSuite] = (),
    plugins: Mapping[PluginKey, PluginSource] = MappingProxyType({}),
) -> Path:
    """Write the report of every trial under `results` and return the path of its main file.

    `results`: results roots, suites' directories or single trials', one or several; a trial that is in
    several of them is taken from where it started last. `out` (default: `reports/<names of results>`)
    receives, by format: `html`: `index.html` (figures inside, nothing loaded from elsewhere); `md`:
    `report.md` with `figures/*.svg`; `csv`: `results.csv`, `epochs.csv` and `figures/*.csv`; `latex`: a file a
    table; `pdf-figures`: the figures for print. `suites`: whose claims are held against the results, beside
    those that are kept with them. `plugins`: from `harness.registry.find_plugins`, whose views the report has,
    too. Files of those names are replaced, others are left alone.
    Raises `UserError` if there is no trial to report, or no such format.
    """
    from harness.report.page import make_report
    from harness.results.frames import load_inputs

    check_formats(formats)
    listed = [results] if isinstance(results, Path) else list(results)
    inputs = load_inputs(listed)
    named = "-".join(dict.fromkeys(place.resolve().name for place in listed))
    target = Path("reports") / named[:_LONGEST] if out is None else Path(out)
    return write_files(Material(lambda: make_report(inputs, suites, plugins), inputs), target, formats)


__all__ = ["FORMATS", "write_report"]
