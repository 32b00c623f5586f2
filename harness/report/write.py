"""The files of a report: page, Markdown, CSV, LaTeX tables and camera-ready figures."""

from __future__ import annotations

import contextlib
import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from harness.errors import UserError, nearest
from harness.report.figure import Figure, Picture
from harness.report.page import Report, ShownSection, render_html, render_markdown, to_csv
from harness.report.table import Cell, Row, Table
from harness.results.frames import ResultInputs

PAGE = "index.html"
TEXT = "report.md"


Files = Iterator[tuple[str, bytes]]
"""Paths in the report's directory, and contents."""


def check_formats(formats: Sequence[str]) -> None:
    """Raise a UserError if there are none, or one is not known."""
    for name in formats:
        if name not in WRITERS:
            raise UserError(f"no format '{name}'", key="--format", fix=nearest(name, WRITERS))
    if not formats:
        raise UserError("names no format", key="--format", fix=f"known: {', '.join(WRITERS)}")


@dataclass(frozen=True)
class Written:
    """A report, what it is made from, where it goes, and the formats that were asked for."""

    report: Report
    inputs: ResultInputs
    out: Path
    formats: Sequence[str]
    pool: Executor | None = None


def write_files(
    report: Report, inputs: ResultInputs, out: Path, formats: Sequence[str], pool: Executor | None = None
) -> Path:
    """Write a report into `out` (made if absent), each file whole or not at all; the page first, figures last.

    `inputs`: what it is made from; `pool`: processes that draw figures. Returns the page, the Markdown, or `out`.
    """
    written = Written(report, inputs, out, formats, pool)
    for path, content in (file for name, write in WRITERS.items() if name in formats for file in write(written)):
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_bytes(content)
        temporary.replace(target)
    main = {"html": PAGE, "md": TEXT}
    return next((out / file for name, file in main.items() if name in formats), out)


def _page(written: Written) -> Files:
    homes: dict[str, Path] = {}
    for directory in written.inputs.directories:
        for pattern in ("*/record.json", "*/*/record.json", "record.json"):
            for record in directory.resolve().glob(pattern):
                homes.setdefault(record.parent.name, record.parent)

    def place(trial: str) -> str:
        """Return how a browser gets from the page to a trial's directory, "" where there is none."""
        home = homes.get(trial)
        return "" if home is None else quote(os.path.relpath(home, written.out.resolve()).replace(os.sep, "/"))

    yield PAGE, render_html(written.report, place).encode()


def _markdown(written: Written) -> Files:
    yield TEXT, render_markdown(written.report, figures="svg" in written.formats).encode()


def _csv(written: Written) -> Files:
    """Yield what the report is made from, and the numbers that each figure shows."""
    inputs = written.inputs
    yield "results.csv", to_csv(inputs.results)
    if "runs" in inputs.results:
        yield "runs.csv", to_csv(inputs.runs)
    yield "epochs.csv", to_csv(inputs.epochs)
    for picture in written.report.pictures:
        if isinstance(picture, Figure):
            yield f"figures/{picture.name}.csv", to_csv(picture.data)
    if networks := written.report.networks:
        yield "network.csv", to_csv(pd.concat([network.frame for network in networks], ignore_index=True))


def _latex(written: Written) -> Files:
    for name, text in latex_files(written.report).items():
        yield f"latex/{name}", text.encode()


def _svg(written: Written) -> Files:
    """Yield each figure as on a screen: a page wide, with its title."""
    for name, files in draw_all(written.report.pictures, "svg", written.pool):
        yield f"figures/{name}.svg", files["svg"]


def _figures(written: Written) -> Files:
    """Yield each figure as a paper prints it: a column or two wide, without a title."""
    for name, files in draw_all(written.report.pictures, "pdf-figures", written.pool):
        yield f"{CAMERA_READY}/{name}.pdf", files["pdf"]
        yield f"{CAMERA_READY}/{name}.svg", files["svg"]


def draw_all(
    figures: Sequence[Figure | Picture], style: str, pool: Executor | None
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the name and the files of each figure, in the style of a report's format."""
    tasks: list[Future[dict[str, bytes]] | None] = []
    for figure in figures:  # a plugin's drawing is not sent to another process
        begin = pool is not None and isinstance(figure, Figure)
        tasks.append(pool.submit(_draw, figure, style) if pool and begin else None)
    for figure, task in zip(figures, tasks, strict=True):
        files = None
        if task:
            with contextlib.suppress(BrokenProcessPool):  # a worker was killed
                files = task.result()
        yield figure.name, files or _draw(figure, style)


def _draw(figure: Figure | Picture, style: str) -> dict[str, bytes]:
    from harness.report.printing import STYLES, draw  # matplotlib and seaborn take a second

    return draw(figure, STYLES[style])


WRITERS = {"html": _page, "md": _markdown, "csv": _csv, "latex": _latex, "svg": _svg, "pdf-figures": _figures}


HEADING = 14  # characters of a column's heading in one line
LINE = 104  # characters of a line of small print
LABEL = 60  # characters of a row's label that stay in one line next to numbers
TEXT_LABEL = 34  # and next to text
BROKEN = 24  # characters of another column that do; numbers always do
MAIN = "main.tex"
CAMERA_READY = "camera-ready"  # where figures for print are, next to the tables' directory
PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage[a4paper,margin=2.2cm]{geometry}
\usepackage{graphicx}
% What the tables need: these three.
\usepackage{booktabs}
\usepackage{tabularx}
\usepackage[export]{adjustbox}
\setlength{\parindent}{0pt}
\raggedbottom
\extrafloats{500}
"""
OPENING = r"""% Needs \usepackage{booktabs,tabularx,adjustbox} and \usepackage[T1]{fontenc}.
\begin{table}[htbp]
\centering\small
\setlength{\belowcaptionskip}{6pt}"""
FITTING = r"\begin{adjustbox}{max width=\linewidth, max totalheight=0.8\textheight}"
CLOSING = r"""\end{adjustbox}
\end{table}
"""


def latex_files(report: Report) -> dict[str, str]:
    """Return the text of each file by its name: `main.tex`, which prints the others, and a file a table.

    Tables are set with booktabs; bold: best, underlined: second best; every text is escaped. `main.tex`
    prints the figures for print too, if they are there.
    """
    files: dict[str, str] = {}

    def put(name: str, tables: Sequence[Table]) -> list[str]:
        """Write tables and return the lines that print them."""
        names = [f"{name}-{i + 1}" if i else name for i in range(len(tables))]
        files.update({f"{own}.tex": render_table(table, own) for own, table in zip(names, tables, strict=True)})
        return [rf"\input{{{own}}}" for own in names]

    def lines_of(shown: ShownSection) -> Iterator[str]:
        """Write a section's tables and yield the lines that print it."""
        facts = "; ".join(f"{name}: {value}" for name, value in shown.section.facts)
        yield from (r"\clearpage", rf"\section*{{{escape(shown.section.title)}}}", escape(facts))
        for view in shown.views:
            yield from [escape(view.failure)] if view.failure else []
            yield from put(view.anchor, [*([view.table] if view.table else []), *view.more])
            yield from [_figure(view.picture)] if view.picture else []

    body = [line for shown in report.answers for line in lines_of(shown)]
    body += [r"\section*{Overview}", *put("overview", [report.overview]), *put("claims", report.claims)]
    body += put("failures", [report.failures] if report.failures else [])
    body += [line for shown in report.shown for line in lines_of(shown)]
    title = rf"\title{{{escape(report.title)}}}\date{{}}"
    lines = [PREAMBLE, title, r"\begin{document}", r"\maketitle", *body, r"\end{document}", ""]
    return {MAIN: "\n".join(lines), **files}


def _figure(picture: Figure | Picture) -> str:
    r"""Return a figure's float; nothing where it was not drawn for print."""
    file = f"../{CAMERA_READY}/{picture.name}.pdf"
    caption = rf"\caption{{\textbf{{{escape(picture.title)}.}} {escape(picture.caption)}}}"
    return rf"""\IfFileExists{{{file}}}{{\begin{{figure}}[htbp]
\centering
\includegraphics[max width=\linewidth]{{{file}}}
{caption}
\label{{fig:{picture.name}}}
\end{{figure}}}}{{}}"""


def render_table(table: Table, name: str) -> str:
    r"""Return a table's float; `name`: its label is `tab:name`.

    A table that is too wide breaks long text into lines, and is set smaller if that is not enough.
    """
    widths = _widths(table)
    numbers = [cell.number for cell in next((row.cells for row in table.rows if row.cells), ())]
    # How many characters each column may have in a table that is too wide.
    bounds = [LABEL if all(numbers) else TEXT_LABEL, *(math.inf if number else BROKEN for number in numbers)]
    most = [min(width, own) for width, own in zip(widths, bounds, strict=True)]
    broken = [sum(widths) > LINE and width > own for width, own in zip(widths, most, strict=True)]
    rows = [_row(row, len(table.columns)) for row in table.rows]
    body = [r"\toprule", *_heads(table), r"\midrule", *rows, r"\bottomrule"]
    caption = rf"\caption{{\textbf{{{escape(table.title)}.}} {escape(table.caption)}}}"
    aligned = zip(["l", *("r" if number else "l" for number in numbers)], broken, strict=True)
    kinds = "".join(r">{\raggedright\arraybackslash}X" if wrap else kind for kind, wrap in aligned)
    begin, end = rf"\begin{{tabular}}{{@{{}}{kinds}@{{}}}}", r"\end{tabular}"
    if any(broken):
        scale = f"{max(1.0, sum(most) / LINE):.2f}"
        begin, end = rf"\begin{{tabularx}}{{{scale}\linewidth}}{{@{{}}{kinds}@{{}}}}", r"\end{tabularx}"
    lines = [OPENING, caption, rf"\label{{tab:{name}}}", FITTING, begin, *body, end, CLOSING]
    return "\n".join(lines)


def _widths(table: Table) -> list[int]:
    """Return about how many characters wide each column is, the labels' first, space between included."""
    heads = [max(map(len, _broken(c)), default=0) for group in table.groups for c in group.columns]
    filled = [row for row in table.rows if row.cells]
    own = [max([head, *(len(row.cells[i].text + row.cells[i].note) for row in filled)]) for i, head in enumerate(heads)]
    return [width + 2 for width in (max([len(table.stub), *(len(row.label) for row in filled)]), *own)]


def _heads(table: Table) -> list[str]:
    """Return the lines of the heading, two where columns are grouped."""
    columns = " & ".join(_head(c) for group in table.groups for c in group.columns)
    stub = escape(table.stub)
    if not table.grouped:
        return [rf"{stub} & {columns} \\"]
    groups, rules, start = [], [], 2
    for group in table.groups:
        end = start + len(group.columns) - 1
        groups.append(rf"\multicolumn{{{len(group.columns)}}}{{c}}{{{escape(group.title)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{end}}}" if group.title else "")
        start = end + 1
    return [rf" & {' & '.join(groups)} \\", "".join(rules), rf"{stub} & {columns} \\"]


def _head(title: str) -> str:
    """Return a column's heading, broken into lines where it is longer than its numbers."""
    lines = _broken(title)
    if len(lines) == 1:
        return escape(title)
    return r"\begin{tabular}[b]{@{}c@{}}" + r"\\".join(escape(line) for line in lines) + r"\end{tabular}"


def _broken(title: str) -> list[str]:
    return textwrap.wrap(title, HEADING, break_long_words=False) or [""]


def _row(row: Row, columns: int) -> str:
    if not row.cells:
        return rf"\addlinespace \multicolumn{{{columns + 1}}}{{@{{}}l}}{{\textit{{{escape(row.label)}}}}} \\"
    return rf"{escape(row.label)} & {' & '.join(_cell(cell) for cell in row.cells)} \\"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.best:
        text = rf"\textbf{{{text}}}"
    elif cell.second:
        text = rf"\underline{{{text}}}"
    mark = rf"{escape(cell.mark)}\," if cell.mark else ""
    note = rf" {{\scriptsize {escape(cell.note)}}}" if cell.note else ""
    return f"{mark}{text}{note}"


_TEXT = {
    "\\": "backslash", "^": "asciicircum", "~": "asciitilde", "`": "asciigrave", '"': "quotedbl",
    "<": "less", ">": "greater", "|": "bar",
}  # fmt: skip
_MATH = {
    "±": "pm", "×": "times", "≤": "leq", "≥": "geq", "≈": "approx", "∞": "infty",
    "α": "alpha", "β": "beta", "τ": "tau", "μ": "mu", "Δ": "Delta",
}  # fmt: skip
_WRITTEN = {
    **{each: f"\\{each}" for each in "{}$&#%_"},
    **{each: rf"\text{name}{{}}" for each, name in _TEXT.items()},
    **{each: rf"$\{name}$" for each, name in _MATH.items()},
    **{each: f"{{{each}}}" for each in "[]*"},  # after \\ they would begin an argument
    **dict.fromkeys("\u2009\u202f", r"\,"),
    "−": "$-$",
    "\0": "{}",
}
_UNSET = set("ĦħĸĿŀŉŦŧſ")  # of the Latin letters those that the T1 fonts lack
_PLAIN = set("–—‘’“”…†‡•€‰→↑↓")
_LIGATURE = re.compile(r"([-'!?,])(?=\1|`)")


def escape(value: object) -> str:
    r"""Return text that LaTeX prints as it is, on one line; needs T1 fonts (`\usepackage[T1]{fontenc}`).

    A character that these do not have is written as its number, [U+6570].
    """
    line = _LIGATURE.sub("\\1\0", " ".join(str(value).split()))  # 0: an empty group between them
    return "".join(_character(each) for each in line)


def _character(each: str) -> str:
    if each in _WRITTEN:
        return _WRITTEN[each]
    latin = "¡" <= each <= "ſ" and each not in _UNSET
    return each if " " <= each <= "}" or latin or each in _PLAIN else f"{{[}}U+{ord(each):04X}{{]}}"
