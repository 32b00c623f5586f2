"""Views that are not part of the tool: found in plugins, shown, and alone when they fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report.fake import METHODS, write_results
from report.measured import EPOCHS, FULL, texts
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import UserError
from harness.metrics import Metric
from harness.registry import find_plugins
from harness.report import write_report
from harness.report.sections import make_sections
from harness.report.views import VIEWS
from harness.report.views.options import OptionsView, OwnMetricsView
from harness.results.frames import load_inputs

PLUGIN = '''
from harness import ReportView


class Peaks(ReportView):
    """Peak memory and drawn chunks."""

    name = "peaks"
    title = "Peaks and chunks"
    question = "Who needs most?"
    place = 15
    columns = ("peak_memory_bytes", "stat_chunks")

    def figure(self):
        import seaborn

        return seaborn.relplot(x=[1, 2], y=[3.0, 4.0], kind="line").figure


class Failing(ReportView):
    """A view with a mistake."""

    name = "failing"
    title = "A failing view"
    question = "Does the rest go on?"

    def table(self):
        return 1 / 0


class Wrong(ReportView):
    """A view that returns what is no table."""

    name = "wrong"
    title = "A wrong view"
    question = "Is it refused?"

    def table(self):
        return "no <b>table</b>"
'''
CHUNKS = Metric.of_method("chunks", "chunks drawn", "B", heading="Chunks")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A method that tells `chunks`, which its records declare."""
    root = tmp_path_factory.mktemp("plugins")
    told = {"stats": {"chunks": 3 * 2**20, "kept_boundary": 7.0}}
    write_results(root, methods=(METHODS[0],), parts=(2,), seeds=(0,), epochs=6, figures=told, metrics=(CHUNKS,))
    return write_results(root, methods=(FULL,), parts=(2,), seeds=(0,), epochs=6, metrics=())


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("views") / "views.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture(scope="module")
def out(root: Path, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    done = CliRunner().invoke(
        app, ["report", str(root), "--out", str(out), "--plugin", str(plugin), "--format", "html,md,csv,svg"]
    )
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.slow
def test_a_plugins_view_is_on_the_page_in_markdown_and_csv(out: Path) -> None:
    page, text = (out / "index.html").read_text(), (out / "report.md").read_text()
    assert '<h3 id="digits-sage-peaks">Peaks and chunks</h3> <span class="setting">' in page
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    assert headings[headings.index("### Peaks and chunks") + 1] == "### Epoch time"  # in its place
    assert "| Method | Peak memory (GiB) | Chunks (MiB) |" in text
    assert "![Peaks and chunks" in text
    assert '<img src="data:image/svg+xml;base64,' in page
    assert (out / "figures" / "digits-sage-peaks.svg").is_file()


@pytest.mark.slow
def test_a_view_that_fails_says_so_in_its_place(out: Path) -> None:
    page, text = (out / "index.html").read_text(), (out / "report.md").read_text()
    failed = "The view “failing” failed: ZeroDivisionError: division by zero"
    assert re.search(rf'<h3 id="digits-sage-failing">A failing view</h3>.*\n<p class="failure">{failed}</p>', page)
    assert f"### A failing view\n\n{failed}\n" in text
    assert "The view “wrong” failed: TypeError: a table is a str, not a Table" in page
    assert text.index("### Partition") < text.index("### A failing view") < text.index("### A wrong view")
    assert "## Environment" in text  # and all the rest


def test_nothing_of_a_plugin_is_shown_without_it(root: Path, tmp_path: Path) -> None:
    text = (write_report(root, tmp_path, ("md",))).read_text()
    assert "Peaks" not in text
    assert "Chunks (MiB)" in text  # as a metric of the method's own


def test_metrics_that_methods_declare_are_columns_by_themselves(root: Path) -> None:
    (section,) = make_sections(load_inputs(root))
    table = OwnMetricsView(section).table()
    assert table is not None
    assert texts(table, "bns-gcn", 2) == {"Chunks (MiB)": "3.00"}
    assert [row.label for row in table.rows] == ["P = 2", "bns-gcn"]  # `full` tells none
    assert table.caption == "Chunks: chunks drawn. Means over seeds."


def test_no_section_has_an_empty_table_of_own_metrics(root: Path, tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL,), parts=(1,), seeds=(0,), epochs=EPOCHS, metrics=())
    (section,) = make_sections(load_inputs(tmp_path))
    assert OwnMetricsView(section).table() is None


def test_views_are_complete() -> None:
    views = [VIEWS.load(name) for name in VIEWS.names()]
    assert all(view.question.endswith("?") and view.title and view.summary() for view in views)
    kinds = [(view.of, view.anchor or view.name) for view in views]
    assert len(kinds) == len(set(kinds))  # or addresses on the page are not unique
    docs = (Path(__file__).parents[2] / "docs" / "views.md").read_text()
    assert not [view.title for view in views if view.of == "section" and view.title not in docs]


@pytest.mark.parametrize("lacking", ["title", "question"])
def test_a_view_without_a_title_or_a_question_is_refused(tmp_path: Path, lacking: str) -> None:
    """The docstring is the question of a view without one."""
    path = tmp_path / "views.py"
    left_out = (f"    {lacking} =", '    """')
    path.write_text("\n".join(line for line in PLUGIN.splitlines() if not line.startswith(left_out)))
    with pytest.raises(UserError, match=f"has no {lacking}"):
        find_plugins([str(path)])


def test_a_metric_that_says_what_is_better_is_an_axis_of_swept_options(tmp_path: Path) -> None:
    chunks = Metric.of_method("chunks", "chunks drawn", "B", heading="Chunks", better="less")
    for rate in (0.1, 0.5):
        told = {"stats": {"chunks": rate * 2**20}}
        methods = (("bns-gcn", {"rate": rate}),)
        write_results(tmp_path, methods=methods, parts=(2,), seeds=(0,), epochs=4, figures=told, metrics=(chunks,))
    (section,) = make_sections(load_inputs(tmp_path))
    view = OptionsView(section)
    table, picture = view.table(), view.figure()
    assert table is not None
    assert table.columns[-1] == "Chunks (KiB)"
    assert [row.cells[-1].text for row in table.rows if row.cells] == ["102", "512"]
    assert picture is not None
    assert picture.data["Chunks (KiB)"].dropna().tolist() == pytest.approx([102.4, 512])


def test_what_another_method_declares_is_no_axis_of_a_sweep(tmp_path: Path) -> None:
    chunks = Metric.of_method("chunks", "chunks drawn", "B", heading="Chunks", better="less")
    told = {"stats": {"chunks": 2**20}}
    write_results(tmp_path, methods=(FULL,), parts=(2,), seeds=(0,), epochs=4, figures=told, metrics=(chunks,))
    swept = tuple(("bns-gcn", {"rate": rate}) for rate in (0.1, 0.5))
    write_results(tmp_path, methods=swept, parts=(2,), seeds=(0,), epochs=4, metrics=())
    (section,) = make_sections(load_inputs(tmp_path))
    view = OptionsView(section)
    table, picture = view.table(), view.figure()
    assert table is not None
    assert picture is not None
    assert not [column for column in (*table.columns, *picture.data) if "Chunks" in column]


def test_a_view_of_a_package_that_does_not_import_is_a_note(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VIEWS, "names", lambda plugins=None: ["accuracy", "gone"])
    text = write_report(root, tmp_path, ("md",)).read_text()
    assert "- **A view does not import:** unknown view 'gone'" in text
    assert "### Accuracy" in text
