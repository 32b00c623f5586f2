"""Tables as LaTeX: what is marked, what is escaped, and that it compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report.measured import section_tables

from harness.report.page import Report, ShownSection, ShownView
from harness.report.sections import make_sections
from harness.report.table import Cell, Group, Row, Table
from harness.report.write import escape, latex_files, render_table
from harness.results.frames import load_inputs

HOSTILE = "\\input{/etc/passwd} 50% $x_1^2$ #&~ {|\\} <b> \"q\" `r` [0pt] * \\\\ a--b ''c'' ±× 数 \x07 ħ é"
TABLE = Table(
    HOSTILE,
    HOSTILE,
    "Method",
    (Group("Time (s)", ("P = 1", HOSTILE)), Group("", ("Why",))),
    (
        Row(HOSTILE),
        Row("[n] full", (Cell("1.00 ± 0.10", best=True), Cell("7", "n=2", "†"), Cell("x_y", number=False))),
        Row("* bns", (Cell("2.00"), Cell(), Cell(HOSTILE, number=False, wrap=True))),
    ),
)  # fmt: skip


def test_marks_rules_and_escapes() -> None:
    tex = render_table(TABLE, "a-table")
    assert r"{[}n{]} full & \textbf{1.00 $\pm$ 0.10} & †\,7 {\scriptsize n=2} & x\_y" in tex
    assert r"{*} bns & 2.00 & n/a &" in tex
    assert r"\multicolumn{2}{c}{Time (s)} & \multicolumn{1}{c}{} \\" in tex
    assert r"\cmidrule(lr){2-3}" in tex
    assert r"\label{tab:a-table}" in tex
    assert [tex.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
    assert "\\input" not in tex
    assert "passwd" in tex


def test_escaped_text_has_no_command_but_those_that_print_a_character() -> None:
    tex = escape(HOSTILE)
    commands = set(re.findall(r"\\([a-zA-Z]+)", tex))
    assert all(name.startswith("text") or name in ("pm", "times") for name in commands)
    assert not re.search(r"(?<!\\)[%&#_^~]", tex)
    assert tex.count("{") - tex.count(r"\{") == tex.count("}") - tex.count(r"\}")
    assert r"\textbackslash{}input\{/etc/passwd\}" in tex
    assert "a-{}-b '{}'c'{}'" in tex
    assert "{[}U+6570{]}" in tex


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_every_table_of_a_report_compiles_and_shows_what_was_written(results_dir: Path, tmp_path: Path) -> None:
    section = make_sections(load_inputs([results_dir]))[0]
    tables = section_tables(section)
    shown = ShownSection(
        section, tuple(ShownView(f"s-{key}", key, table, None, (TABLE,)) for key, table in tables.items())
    )
    report = Report(
        title=HOSTILE, summaries=[], filters=[], environment=[], notes=[], failures=TABLE,
        shown=[shown], networks=[],
    )  # fmt: skip
    files = latex_files(report)
    assert len(files) == 3 + 2 * len(tables)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    if shutil.which("pdftotext"):
        shown = subprocess.run(["pdftotext", "-layout", "main.pdf", "-"], cwd=tmp_path, capture_output=True, check=True)
        text = "".join(shown.stdout.decode().split())
        assert r"\input{/etc/passwd}50%$x" in text
        best = next(cell.text for row in tables["accuracy"].rows for cell in row.cells if cell.best)
        assert "".join(best.split()) in text
