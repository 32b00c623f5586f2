"""The report of results directories: one self-contained page, Markdown, CSV, LaTeX and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.results.suite_file import KeptSuite

FORMATS = ("html", "md", "csv")  # that are written unless others are asked for


def write_report(
    results: Path | Sequence[Path],
    out: Path | None = None,
    formats: Sequence[str] = FORMATS,
    suites: Sequence[KeptSuite] = (),
) -> Path:
    """Write the report of every trial under `results` and return the path of its main file.

    `results`: results roots, suites' directories or single trials', one or several; a trial that is in
    several of them is taken from where it started last. `out` (default: `reports/<names of results>`)
    receives, by format: `html`: `index.html` (figures inside, nothing loaded from elsewhere); `md`:
    `report.md` with `figures/*.svg`; `csv`: `results.csv`, `epochs.csv` and `figures/*.csv`; `latex` and
    `pdf-figures`: see `harness.report.export`. `suites`: whose claims are held against the results, beside
    those that are kept with them. Files of those names are replaced, others are left alone.
    Raises `UserError` if there is no trial to report, or no such format.
    """
    from harness.report.page.build import make_report
    from harness.report.page.write import check_formats, write_files
    from harness.report.trials.inputs import load_inputs

    check_formats(formats)
    listed = [results] if isinstance(results, Path) else list(results)
    inputs = load_inputs(listed)
    named = "-".join(dict.fromkeys(place.resolve().name for place in listed))
    target = Path("reports") / named[:_LONGEST] if out is None else Path(out)
    return write_files(lambda: make_report(inputs, suites), inputs, target, formats)


_LONGEST = 100  # characters of a directory that is named after several

__all__ = ["FORMATS", "write_report"]
