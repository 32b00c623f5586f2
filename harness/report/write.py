"""The files of a report: page, Markdown, CSV, LaTeX tables and camera-ready figures."""

from __future__ import annotations

import contextlib
import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from importlib import resources
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from harness.files import write_whole
from harness.report.figure import Figure, Picture
from harness.report.page import LEFT_OUT, Report, ShownSection, render_html, templates, to_csv
from harness.report.table import Cell, Row, Table
from harness.results.frames import ResultInputs

PAGE = "index.html"
TEXT = "report.md"
FILES = ("html", "md", "csv", "latex", "svg", "pdf-figures")


def write_files(
    report: Report, inputs: ResultInputs, out: Path, formats: Sequence[str], pool: Executor | None = None
) -> Path:
    """Write a report into `out` (made if absent), each file whole or not at all; the page first, figures last.

    `inputs`: what it is made from; `pool`: processes that draw figures. Returns the page, the Markdown, or `out`.
    """
    for path, content in _files(report, inputs, out, formats, pool):
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
    main = {"html": PAGE, "md": TEXT}
    return next((out / file for name, file in main.items() if name in formats), out)


def _files(
    report: Report, inputs: ResultInputs, out: Path, formats: Sequence[str], pool: Executor | None
) -> Iterator[tuple[str, bytes]]:
    """Yield paths in the report's directory, and contents."""
    if "html" in formats:
        yield PAGE, render_html(report, _homes(inputs, out)).encode()
    if "md" in formats:
        markdown = templates(autoescape=False).get_template("report.md.j2")
        yield TEXT, markdown.render(report=report, figures="svg" in formats).encode()
    if "csv" in formats:
        yield from csv_files(report, inputs)
    if "latex" in formats:
        yield from ((f"latex/{name}", text.encode()) for name, text in latex_files(report).items())
    if "svg" in formats:  # as on a screen: a page wide, with its title
        yield from ((f"figures/{name}.svg", own["svg"]) for name, own in draw_all(report.pictures, "svg", pool))
    if "pdf-figures" in formats:  # as a paper prints it: a column or two wide, without a title
        for name, own in draw_all(report.pictures, "pdf-figures", pool):
            yield from ((f"{CAMERA_READY}/{name}.{kind}", own[kind]) for kind in ("pdf", "svg"))


def _homes(inputs: ResultInputs, out: Path) -> dict[str, str]:
    """Return how a browser gets from the page to the directory of each trial."""
    homes: dict[str, str] = {}
    for directory in inputs.directories:
        for pattern in ("*/record.json", "*/*/record.json", "record.json"):
            for record in directory.resolve().glob(pattern):
                way = os.path.relpath(record.parent, out.resolve()).replace(os.sep, "/")
                homes.setdefault(record.parent.name, quote(way))
    return homes


def csv_files(report: Report, inputs: ResultInputs) -> Iterator[tuple[str, bytes]]:
    """Yield what the report is made from, and the numbers that each figure shows."""
    yield "results.csv", to_csv(inputs.results)
    if "runs" in inputs.results:
        yield "runs.csv", to_csv(inputs.runs)
    yield "epochs.csv", to_csv(inputs.epochs)
    for picture in report.pictures:
        if isinstance(picture, Figure):
            yield f"figures/{picture.name}.csv", to_csv(picture.data)
    if report.networks:
        yield "network.csv", to_csv(pd.concat([network.frame for network in report.networks], ignore_index=True))
    if report.elsewhere:
        yield "projected.csv", to_csv(pd.concat([on.elsewhere.frame for on in report.elsewhere], ignore_index=True))


def draw_all(
    figures: Sequence[Figure | Picture], style: str, pool: Executor | None
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the name and the files of each figure, in the style of a report's format."""
    # A plugin's drawing is not sent to another process.
    tasks = [pool.submit(_draw, own, style) if pool and isinstance(own, Figure) else None for own in figures]
    for figure, task in zip(figures, tasks, strict=True):
        files = None
        if task:
            with contextlib.suppress(BrokenProcessPool):  # a worker was killed
                files = task.result()
        yield figure.name, files or _draw(figure, style)


def _draw(figure: Figure | Picture, style: str) -> dict[str, bytes]:
    from harness.report.printing import STYLES, draw  # matplotlib and seaborn take a second

    return draw(figure, STYLES[style])


HEADING = 14  # characters of a column's heading in one line
LINE = 104  # characters of a line of small print
LABEL = 60  # characters of a row's label that stay in one line next to numbers
TEXT_LABEL = 34  # and next to text
BROKEN = 24  # characters of another column that do; numbers always do
MAIN = "main.tex"
CAMERA_READY = "camera-ready"  # where figures for print are, next to the tables' directory
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

    Tables are set with booktabs, the best in bold; every text is escaped. `main.tex`
    prints the figures for print too, if they are there.
    """
    files: dict[str, str] = {}
    body: list[str] = []

    def put(name: str, *tables: Table | None) -> None:
        for i, table in enumerate(filter(None, tables)):
            own = f"{name}-{i + 1}" if i else name
            files[f"{own}.tex"] = render_table(table, own)
            body.append(rf"\input{{{own}}}")

    def put_section(shown: ShownSection) -> None:
        facts = "; ".join(f"{name}: {value}" for name, value in shown.section.facts)
        body.extend((r"\clearpage", rf"\section*{{{escape(shown.section.title)}}}", escape(facts)))
        for view in shown.views:
            body.extend([escape(view.failure)] if view.failure else [])
            put(view.anchor, view.table, *view.more)
            body.extend([_figure(view.picture)] if view.picture else [])

    for shown in report.answers:
        put_section(shown)
    put("claims", *report.claims)
    put("external", *report.external)
    put("failures", report.failures)
    for shown in report.shown:
        put_section(shown)
    body.extend([escape(f"{LEFT_OUT} {report.left_out}.")] if report.left_out else [])
    title = rf"\title{{{escape(report.title)}}}\date{{}}"
    preamble = resources.files("harness.report").joinpath("templates/preamble.tex").read_text("utf-8")
    lines = [preamble, title, r"\begin{document}", r"\maketitle", *body, r"\end{document}", ""]
    return {MAIN: "\n".join(lines), **files}


def _figure(picture: Figure | Picture) -> str:
    """Return a figure's float; nothing where it was not drawn for print."""
    file = f"../{CAMERA_READY}/{picture.name}.pdf"
    caption = rf"\caption{{\textbf{{{escape(picture.title)}.}} {escape(picture.caption)}}}"
    return rf"""\IfFileExists{{{file}}}{{\begin{{figure}}[htbp]
\centering
\includegraphics[max width=\linewidth]{{{file}}}
{caption}
\label{{fig:{picture.name}}}
\end{{figure}}}}{{}}"""


def render_table(table: Table, name: str) -> str:
    """Return a table's float; `name`: its label is `tab:name`.

    A table that is too wide breaks long text into lines, and is set smaller if that is not enough.
    """
    filled = [row for row in table.rows if row.cells]
    numbers = [cell.number for cell in filled[0].cells] if filled else []
    heads = [column for group in table.groups for column in group.columns]
    # About how many characters wide each column is, the labels' first, space between included.
    widths = [2 + max([len(table.stub), *(len(row.label) for row in filled)])]
    for i, head in enumerate(heads):
        widths.append(2 + max([*map(len, _broken(head)), *(len(r.cells[i].text + r.cells[i].note) for r in filled)]))
    # How many characters each column may have in a table that is too wide.
    bounds = [LABEL if all(numbers) else TEXT_LABEL, *(math.inf if number else BROKEN for number in numbers)]
    most = [min(width, own) for width, own in zip(widths, bounds, strict=True)]
    broken = [sum(widths) > LINE and width > own for width, own in zip(widths, most, strict=True)]
    caption = rf"\caption{{\textbf{{{escape(table.title)}.}} {escape(table.caption)}}}"
    aligned = zip(["l", *("r" if number else "l" for number in numbers)], broken, strict=True)
    kinds = "".join(r">{\raggedright\arraybackslash}X" if wrap else kind for kind, wrap in aligned)
    begin, end = rf"\begin{{tabular}}{{@{{}}{kinds}@{{}}}}", r"\end{tabular}"
    if any(broken):
        scale = f"{max(1.0, sum(most) / LINE):.2f}"
        begin, end = rf"\begin{{tabularx}}{{{scale}\linewidth}}{{@{{}}{kinds}@{{}}}}", r"\end{tabularx}"
    rows = [_row(row, len(heads) + 1) for row in table.rows]
    headings = rf"{escape(table.stub)} & {' & '.join(map(_head, heads))} \\"
    body = [r"\toprule", *_group_heads(table), headings, r"\midrule", *rows, r"\bottomrule"]
    lines = [OPENING, caption, rf"\label{{tab:{name}}}", FITTING, begin, *body, end, CLOSING]
    return "\n".join(lines)


def _group_heads(table: Table) -> list[str]:
    """Return the two lines above the headings of columns, where these are grouped."""
    if not table.grouped:
        return []
    groups, rules, start = [], [], 2
    for group in table.groups:
        end = start + len(group.columns) - 1
        groups.append(rf"\multicolumn{{{len(group.columns)}}}{{c}}{{{escape(group.title)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{end}}}" if group.title else "")
        start = end + 1
    return [rf" & {' & '.join(groups)} \\", "".join(rules)]


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
        return rf"\addlinespace \multicolumn{{{columns}}}{{@{{}}l}}{{\textit{{{escape(row.label)}}}}} \\"
    return rf"{escape(row.label)} & {' & '.join(map(_cell, row.cells))} \\"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.best:
        text = rf"\textbf{{{text}}}"
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
    """Return text that LaTeX prints as it is, on one line; needs T1 fonts (`\\usepackage[T1]{fontenc}`).

    A character that these do not have is written as its number, [U+6570].
    """
    found = []
    for each in _LIGATURE.sub("\\1\0", " ".join(str(value).split())):  # 0: an empty group between them
        known = " " <= each <= "}" or ("¡" <= each <= "ſ" and each not in _UNSET) or each in _PLAIN
        found.append(_WRITTEN.get(each) or (each if known else f"{{[}}U+{ord(each):04X}{{]}}"))
    return "".join(found)
