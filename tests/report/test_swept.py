"""Chapters of a setting that a suite varies: what is a point of them, and their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness_methods.graphsaint import GraphSAINT
from report.fake import METHODS, write_results

from harness.report import write_report
from harness.report.printing import draw
from harness.report.sections import make_sections
from harness.report.sweeps import LAYERS, THREADS, Swept, sweeps
from harness.report.table import Table
from harness.report.views.background import CountingView, SweptPoolView
from harness.report.views.batches import SweptLayersView, nodes_by_layer
from harness.report.views.breakdown import StepView, phase_table, relative
from harness.results.frames import load_inputs

SAGE, FULL = METHODS[2:]
POOLED = (SAGE[0], SAGE[1] | {"pool": 4})
COUNTING = GraphSAINT.metrics  # as if these methods counted subgraphs


def rows(table: Table | None) -> dict[str, list[str]]:
    assert table is not None
    return {row.label: [cell.text for cell in row.cells] for row in table.rows if row.cells}


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One and four threads of two methods, two threads of one of them; counts of one thread were there."""
    root = tmp_path_factory.mktemp("threads")
    for count, seconds in ((1, None), (2, 8.0), (4, 5.0)):
        figures = {"presampled": 400, "presample_s": seconds, "presample_threads": count if seconds else None}
        methods = (POOLED, FULL) if count != 2 else (POOLED,)
        train = {"threads": count}
        write_results(root, methods=methods, seeds=(0, 1), epochs=6, train=train, figures=figures, metrics=COUNTING)
    return root


@pytest.fixture(scope="module")
def by_threads(threads: Path) -> Swept:
    [swept] = sweeps(load_inputs(threads))
    return swept


def test_a_step_by_threads(threads: Path, by_threads: Swept) -> None:
    assert (by_threads.axis, by_threads.values) == (THREADS, (1.0, 2.0, 4.0))
    assert by_threads.section.title == "digits · sage · by threads"
    assert len(make_sections(load_inputs(threads))) == 3  # each has its own section, too
    inputs = load_inputs(threads)
    count = [inputs.config(row)["train"]["threads"] for row in inputs.results.to_dict("records")]
    mean = inputs.results.assign(x=count).groupby(["method", "parts", "x"])["step_time_s"].mean()
    assert (mean > 0).all()
    times = by_threads.values_of("step_time_s")
    found = {(v.method, parts, int(x)): stat.mean for (v, parts, x), stat in times.items()}
    assert found == pytest.approx(dict(mean))
    full, sage = by_threads.section.variants
    ratio = mean["graphsage", 2, 1] / mean["graphsage", 2, 4]
    assert relative(by_threads, times, (sage, 2, 4.0)) == pytest.approx(ratio)
    assert relative(by_threads, times, (full, 1, 2.0)) is None
    table = StepView(by_threads).table()
    assert table is not None
    assert table.columns[:2] == ("Step (ms), threads = 1", "Step (ms), threads = 2")
    assert rows(table)["graphsage"][3:6:2] == ["1.00", f"{ratio:.2f}"]  # the last rows are those of P = 2
    assert rows(table)["full"][1] == "n/a"


def test_the_sampling_share_is_of_all_phases(by_threads: Swept) -> None:
    """A rank's phases are 0.1 of 1.113 s on one part, as `fake` makes them."""
    table = StepView(by_threads).table()
    assert table is not None
    first = next(row for row in table.rows if row.label == "graphsage")
    assert [cell.text for cell in first.cells[6:]] == ["9.0"] * 3


def test_phases_speed_up_by_threads(by_threads: Swept) -> None:
    found = rows(phase_table(by_threads))
    assert set(found) == {"full, threads=4", "graphsage, threads=2", "graphsage, threads=4"}
    assert float(found["graphsage, threads=4"][-1]) == pytest.approx(4**0.8, rel=0.1)
    assert found["full, threads=4"][0] == "n/a"  # it samples nothing


def test_subgraphs_counted_before_the_training(threads: Path) -> None:
    own = [CountingView(section).table() for section in make_sections(load_inputs(threads))]
    assert sorted(rows(table)["graphsage"] for table in own) == [
        ["400", "5.00", "4", "80.0"],
        ["400", "8.00", "2", "50.0"],
        ["400", "reused", "reused", "reused"],
    ]


def test_batches_of_a_pool_a_second(threads: Path, by_threads: Swept) -> None:
    """Only of who has a pool: steps / seconds of sampling, means over seeds, and times the first's."""
    inputs = load_inputs(threads)
    count = [inputs.config(row)["train"]["threads"] for row in inputs.results.to_dict("records")]
    results = inputs.results.assign(x=count, rate=inputs.results["steps"] / inputs.results["time_sample_s"])
    mean = results[results["method"] == "graphsage"].groupby(["parts", "x"])["rate"].mean()
    table = SweptPoolView(by_threads).table()
    assert table is not None
    shown = {row.label: [cell.text for cell in row.cells] for row in table.rows if row.cells}
    assert set(shown) == {"graphsage"}
    parts = max(parts for parts, _ in mean.index)
    expected = [mean[parts, x] for x in (1, 2, 4)]
    assert [float(text.replace(",", "")) for text in shown["graphsage"][:3]] == pytest.approx(expected, rel=0.05)
    assert [float(text) for text in shown["graphsage"][3:]] == pytest.approx(
        [rate / expected[0] for rate in expected], abs=0.01
    )


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("layers")
    for count in (1, 2, 3):
        sage = ("graphsage", {"fanouts": [25, 10, 10][:count], "batch_size": 512})
        write_results(root, methods=(sage, FULL), parts=(1, 2), seeds=(0,), epochs=6, layers=count)
    return root


def test_nodes_of_a_step_by_layer(layers: Path) -> None:
    """A rank's step has 100 outputs and 8 times as many nodes with each layer, as `fake` makes them."""
    [swept] = sweeps(load_inputs(layers))
    full, sage = swept.section.variants
    assert (swept.axis, swept.values, sage.label) == (LAYERS, (1.0, 2.0, 3.0), "graphsage")
    assert sage.options["fanouts"] == [25, 10, 10]
    found = {(v.label, parts): nodes for (v, parts), nodes in nodes_by_layer(swept.unfolded()).items()}
    assert found == {
        (f"graphsage, layers={count:g}", parts): [100.0 * 8**i for i in range(1 + int(count))]
        for parts in (1, 2)
        for count in swept.values
    }
    table = SweptLayersView(swept).table()
    assert rows(table)["graphsage, layers=2"] == ["100", "800", "6,400", "", "64.0"]
    times = swept.values_of("step_time_s")
    assert relative(swept, times, (full, 1, 3.0)) == pytest.approx(3, rel=0.1)
    assert phase_table(swept) is None


def test_lists_that_are_no_beginnings_stay_apart(tmp_path: Path) -> None:
    for count, fanouts in ((1, [10]), (2, [25, 10]), (2, [10, 25])):
        sage = ("graphsage", {"fanouts": fanouts, "batch_size": 512})
        write_results(tmp_path, methods=(sage,), parts=(1,), seeds=(0,), epochs=6, layers=count)
    assert list(sweeps(load_inputs(tmp_path))) == []


def test_the_section_is_on_the_page(tmp_path: Path) -> None:
    for count in (1, 2):
        train, figures = ({"threads": count}, {"presampled": 400, "presample_s": 5.0, "presample_threads": count})
        write_results(
            tmp_path,
            methods=(POOLED,),
            parts=(1,),
            seeds=(0,),
            epochs=4,
            train=train,
            figures=figures,
            metrics=COUNTING,
        )
    page = write_report(tmp_path, tmp_path / "out").read_text()
    pictures = {path.stem for path in (tmp_path / "out" / "figures").glob("threads-*.csv")}
    assert pictures == {f"threads-digits-sage-{name}" for name in ("step", "breakdown", "pool")}
    assert all(f'id="{picture}"' in page for picture in pictures)
    assert "graphsage, threads=2 |" in (tmp_path / "out" / "report.md").read_text()


def test_nodes_are_drawn_by_layer(layers: Path) -> None:
    [swept] = sweeps(load_inputs(layers))
    figure = SweptLayersView(swept).figure()
    assert figure is not None
    assert len(draw(figure)["svg"]) > 10_000


def test_one_value_is_no_sweep(results_dir: Path) -> None:
    assert list(sweeps(load_inputs(results_dir))) == []
