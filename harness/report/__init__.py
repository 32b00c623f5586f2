"""The report of results directories: one self-contained page, Markdown, CSV, LaTeX and figures."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from harness.errors import UserError, nearest

if TYPE_CHECKING:
    from harness.registry import PluginKey
    from harness.results.frames import ResultInputs
    from harness.results.record_store import KeptSuite
    from harness.spec import PluginSource

FORMATS = ("html", "md", "csv")  # that are written unless others are asked for
DRAWN = ("svg", "pdf-figures")  # that seaborn draws figures for
_LONGEST = 100  # characters of a directory that is named after several


def write_report(
    results: Path | str | Sequence[Path],
    out: Path | str | None = None,
    formats: Sequence[str] = FORMATS,
    suites: Sequence[KeptSuite] = (),
    plugins: Mapping[PluginKey, PluginSource] = MappingProxyType({}),
    renewed_s: int | None = None,
    workers: int = 0,
    baselines: Sequence[Path] = (),
    say: Callable[[str], object] | None = None,
) -> Path:
    """Write the report of every trial under `results` and return the path of its main file.

    `results`: results roots, suites' directories or single trials', one or several; a trial that is in
    several of them is taken from where it started last. `out` (default: `reports/<names of results>`)
    receives, by format: `html`: `index.html` (which draws its figures itself, nothing loaded from elsewhere); `md`:
    `report.md`; `csv`: `results.csv` (of repeats `runs.csv`, too), `epochs.csv` and `figures/*.csv`; `latex`: a file
    a table; `svg`: `figures/*.svg`, which `report.md` shows then; `pdf-figures`: the figures for print.
    `suites`: whose claims are held against the results, besides those that are kept with them. `plugins`: from
    `harness.registry.find_plugins`, whose views the report has, too. `renewed_s`: a browser loads the page anew every
    so many seconds. `workers`: how many further processes may draw figures. `baselines`: results whose trials
    are shown where they are comparable with those of `results`. `say`: is given the report's first lines, its answer.
    Files of those names are replaced, others are kept.
    Raises `UserError` if there is no trial to report, or no such format.
    """
    with render_workers(workers if set(DRAWN) & set(formats) else 0) as pool:
        from harness.report.page import make_report
        from harness.report.write import FILES, write_files

        for name in formats:
            if name not in FILES:
                raise UserError(f"no format '{name}'", key="--format", fix=nearest(name, FILES))
        if not formats:
            raise UserError("names no format", key="--format", fix=f"known: {', '.join(FILES)}")
        listed, inputs = _read(results, baselines)
        named = "-".join(dict.fromkeys(path.resolve().name for path in listed))
        target = Path("reports") / named[:_LONGEST] if out is None else Path(out)
        report = replace(make_report(inputs, suites, plugins), renewed_s=renewed_s)
        written = write_files(report, inputs, target, formats, pool)
        if say:
            for line in (*(sentence for _, sentence in report.sentences), report.line):
                say(line)
        return written


class Drawn(dict[str, str]):
    """Figures as SVG, by name; a notebook shows them one below the other."""

    def _repr_html_(self) -> str:
        return "\n".join(text[text.index("<svg") :] for text in self.values())


def plot(results: Path | str | Sequence[Path], figure: str = "answer") -> Drawn:
    """Draw a figure of the report for each data set and model, for a notebook.

    Args:
        results: as for `write_report`.
        figure: how its files are called (`figures/*.svg`), or how their names end: `answer`, `convergence`, `step`.

    Raises:
        UserError: there is no trial, or no such figure.
    """
    from harness.report.page import make_report
    from harness.report.write import draw_all

    every = {each.name: each for each in make_report(_read(results)[1]).pictures}
    found = [each for name, each in every.items() if f"-{name}".endswith(f"-{figure}")]
    if not found:
        raise UserError(f"no figure '{figure}'", key="figure", fix=nearest(figure, every))
    return Drawn({name: files["svg"].decode() for name, files in draw_all(found, "svg", None)})


def _read(results: Path | str | Sequence[Path], baselines: Sequence[Path] = ()) -> tuple[list[Path], ResultInputs]:
    """Return the directories that are named, and their trials."""
    from harness.report.sections import with_needed_baselines
    from harness.results.frames import load_inputs

    listed = [Path(results)] if isinstance(results, Path | str) else list(results)
    return listed, with_needed_baselines(load_inputs(listed, baselines))


MOST = 3  # processes; each takes a second or two to import what it draws with


@contextlib.contextmanager
def render_workers(count: int) -> Iterator[Executor | None]:
    """Offer `count` processes, at most `MOST`, that draw figures; None without any.

    They start now, and import while this process reads results.
    """
    if count < 1:
        yield None
        return
    begin = multiprocessing.get_context("spawn")
    # Ctrl-C is for the main process, which ends the workers.
    pool = ProcessPoolExecutor(min(count, MOST), begin, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    for _ in range(min(count, MOST)):
        pool.submit(importlib.import_module, "harness.report.printing")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
