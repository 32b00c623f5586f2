"""The files of a report: page, Markdown, CSV, LaTeX tables and camera-ready figures."""

from __future__ import annotations

import functools
import math
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.errors import UserError, nearest
from harness.report.drawing import PRINT, Picture, style
from harness.report.page import Report, render_html, render_markdown, to_csv
from harness.report.table import Cell, Row, Table
from harness.results.frames import ResultInputs

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


HEADING = 14  # characters of a column's heading in one line
LINE = 104  # characters of a line of small print
LABEL = 60  # characters of a row's label that stay in one line beside numbers
BESIDE = 34  # and beside text
BROKEN = 24  # characters of another column that do; numbers always do
MAIN = "main.tex"
CAMERA_READY = "camera-ready"  # where figures for print are, beside the tables' directory
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

    body = [r"\section*{Overview}", *put("overview", [report.overview]), *put("claims", report.claims)]
    body += put("failures", [report.failures] if report.failures else [])
    for shown in report.shown:
        facts = "; ".join(f"{name}: {value}" for name, value in shown.section.facts)
        body += [r"\clearpage", rf"\section*{{{escape(shown.section.title)}}}", escape(facts)]
        for view in shown.views:
            body += [escape(view.failure)] if view.failure else []
            body += put(view.anchor, [*([view.table] if view.table else []), *view.more])
            body += [_figure(view.picture)] if view.picture else []
    title = rf"\title{{{escape(report.title)}}}\date{{}}"
    lines = [PREAMBLE, title, r"\begin{document}", r"\maketitle", *body, r"\end{document}", ""]
    return {MAIN: "\n".join(lines), **files}


def _figure(picture: Picture) -> str:
    r"""Return a figure's float; nothing where it was not drawn for print."""
    file = f"../{CAMERA_READY}/{picture.name}.pdf"
    caption = rf"\caption{{\textbf{{{escape(picture.title)}.}} {escape(picture.caption)}}}"
    drawn = [
        r"\begin{figure}[htbp]",
        r"\centering",
        rf"\includegraphics[max width=\linewidth]{{{file}}}",
        caption,
        rf"\label{{fig:{picture.name}}}",
        r"\end{figure}",
    ]
    return rf"\IfFileExists{{{file}}}{{" + "\n".join(drawn) + "}{}"


def render_table(table: Table, name: str) -> str:
    r"""Return a table's float; `name`: its label is `tab:name`.

    A table that is too wide breaks long text into lines, and is set smaller if that is not enough.
    """
    widths = _widths(table)
    most = [min(width, own) for width, own in zip(widths, _most(table), strict=True)]
    broken = [sum(widths) > LINE and width > own for width, own in zip(widths, most, strict=True)]
    rows = [_row(row, len(table.columns)) for row in table.rows]
    body = [r"\toprule", *_heads(table), r"\midrule", *rows, r"\bottomrule"]
    caption = rf"\caption{{\textbf{{{escape(table.title)}.}} {escape(table.caption)}}}"
    kinds = "".join(
        r">{\raggedright\arraybackslash}X" if wrap else kind for kind, wrap in zip(_kinds(table), broken, strict=True)
    )
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
    cells = [[len(row.cells[i].text) + len(row.cells[i].note) for row in filled] for i in range(len(heads))]
    own = [max([head, *lengths]) for head, lengths in zip(heads, cells, strict=True)]
    return [width + 2 for width in (max([len(table.stub), *(len(row.label) for row in filled)]), *own)]


def _first(table: Table) -> Sequence[Cell]:
    return next((row.cells for row in table.rows if row.cells), ())


def _most(table: Table) -> list[float]:
    """Return how many characters each column may have in a table that is too wide."""
    numbers = [cell.number for cell in _first(table)]
    return [LABEL if all(numbers) else BESIDE, *(math.inf if number else BROKEN for number in numbers)]


def _kinds(table: Table) -> list[str]:
    """Return the columns' alignment: numbers to the right."""
    return ["l", *("r" if cell.number else "l" for cell in _first(table))]


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


_WRITTEN = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # after \\ it would begin an argument
    "]": "{]}",
    "*": "{*}",  # so would this
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "\u2009": r"\,",
    "\u202f": r"\,",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "μ": r"$\mu$",
    "Δ": r"$\Delta$",
}
_UNSET = set("ĦħĸĿŀŉŦŧſ")  # of the Latin letters those that the T1 fonts lack
_PLAIN = set("–—‘’“”…†‡•€‰→↑↓")
_LIGATURE = re.compile(r"([-'!?,])(?=\1|`)")


def escape(value: object) -> str:
    r"""Return text that LaTeX prints as it is, on one line; needs T1 fonts (`\usepackage[T1]{fontenc}`).

    A character that these do not have is written as its number, [U+6570].
    """
    line = _LIGATURE.sub("\\1\0", " ".join(str(value).split()))  # 0: nothing, but it stands between
    return "".join(_character(each) for each in line)


def _character(each: str) -> str:
    if each == "\0":
        return "{}"
    if each in _WRITTEN:
        return _WRITTEN[each]
    latin = "¡" <= each <= "ſ" and each not in _UNSET
    return each if " " <= each <= "}" or latin or each in _PLAIN else f"{{[}}U+{ord(each):04X}{{]}}"
