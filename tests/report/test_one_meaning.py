"""One meaning of a word, of ± and of bold in all tables and sentences of a report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest
from report.measured import FULL, Write, section_tables, texts

from harness.report.sections import Section
from harness.report.summary import make_summaries
from harness.report.table import Table
from harness.report.values import standing, values_of
from harness.report.variants import Variant
from harness.report.views import captions

METHODS = (
    FULL,
    ("bns-gcn", {"rate": 0.1, "sampler": "bernoulli"}),
    ("bns-gcn", {"rate": 0.01, "sampler": "bernoulli"}),
    ("graphsage", {"fanouts": [25, 10], "batch_size": 1000}),
)
MARKED = {  # tables with bold cells, and the metric of each of their columns
    "accuracy": ("test_at_best_val", "best_val"), "time": ("epoch_time_s",), "memory": ("peak_memory_bytes",),
    "scaling": ("throughput_epochs_s",),
}  # fmt: skip


@pytest.fixture
def section(write: Write) -> Section:
    return write(METHODS, seeds=(0, 1, 2), parts=(1, 2))


def sentences(section: Section, tables: dict[str, Table]) -> Iterator[str]:
    """Yield every sentence of captions and of the summary."""
    for text in (
        *(table.caption for table in tables.values()),
        *(win.text for s in make_summaries([section]) for win in s.wins),
    ):
        yield from re.split(r"(?<=[.;:]) ", text)


def test_a_share_of_bytes_is_that_of_the_totals(section: Section) -> None:
    ((summary),) = make_summaries([section])
    win = next(win for win in summary.wins if "bytes" in win.what)
    share, of = re.search(r"([\d.]+) % of ([\w-]+)", win.text).groups()  # type: ignore[union-attr]
    tables = section_tables(section)
    totals = {label: float(texts(tables["traffic"], label, 2)["Total"]) for label in (win.variant.label, of)}
    assert totals[win.variant.label] == min(float(row.cells[0].text) for row in tables["traffic"].rows[-len(METHODS) :])
    assert float(share) == pytest.approx(100 * totals[win.variant.label] / totals[of], abs=0.06)
    saved = texts(tables["traffic"], win.variant.label, 2)[f"Saved of {of} (%)"]
    assert float(saved) == pytest.approx(100 - float(share), abs=0.11)
    told = texts(tables["sampling"], win.variant.label, 2)
    assert float(told[f"Share of {of} (%)"]) == pytest.approx(float(share), abs=0.06)


def test_the_parts_of_the_bytes_add_up_to_the_total(section: Section) -> None:
    table = section_tables(section)["traffic"]
    assert table.columns[0] == "Total"
    sent = values_of(section, "counted_bytes")
    for variant in section.variants:
        own = texts(table, variant.label, 2)
        parts = [
            float(text.strip("<")) for name, text in own.items() if name != "Total" and not name.startswith("Saved")
        ]
        assert sum(parts) == pytest.approx(float(own["Total"]), abs=5e-3)
        assert float(own["Total"]) == pytest.approx(sent[variant, 2].mean / 2**20, abs=6e-4)


def test_plus_minus_is_the_standard_deviation(section: Section) -> None:
    tables = section_tables(section)
    for sentence in sentences(section, tables):
        if "± " in sentence and not re.search(r"\d ± \d", sentence):
            assert re.search("± sample standard deviation", sentence), sentence
    for parts in captions().values():
        for text in parts.values():
            assert " ".join(text.split()).count("±") == " ".join(text.split()).count("± sample standard deviation")
    for column, name in (("Epoch time (s)", "epoch_time_s"), ("Test score (%)", "test_at_best_val")):
        stats = values_of(section, name)
        unit, at = 1.0 if name == "epoch_time_s" else 0.01, tables["leaderboard"].columns.index(column)
        for row in tables["leaderboard"].rows:
            assert row.variant is not None
            assert row.parts is not None
            mean, spread = map(float, row.cells[at].text.split(" ± "))
            own = stats[row.variant, row.parts]
            assert own.std is not None
            assert (mean, spread) == (
                pytest.approx(own.mean / unit, abs=0.006),
                pytest.approx(own.std / unit, abs=0.006),
            )


def behind_none(found: Mapping[Variant, tuple[int, tuple[int, ...]]]) -> set[str]:
    """The labels of the variants that tie with every better rank."""
    ranks = {rank for rank, _ in found.values()}
    return {v.label for v, (rank, ties) in found.items() if all(other in ties for other in ranks if other < rank)}


def test_bold_is_the_same_set_in_all_tables(section: Section) -> None:
    tables = section_tables(section)
    rule = captions()["rule"]["bold"].split()
    bold = {name for name, table in tables.items() for row in table.rows for cell in row.cells if cell.best}
    assert bold <= {*MARKED, "leaderboard", "answer"}
    for name in bold:
        assert " ".join(rule) in tables[name].caption
    sets = 0
    for name, metrics in MARKED.items():
        for index, metric in enumerate(metrics):
            for place, parts in enumerate(section.parts):
                found = standing(section, metric, parts)
                best = behind_none(found)
                best = best if len(best) < len(found) else set()
                at = len(section.parts) * index + place
                shown = {row.label for row in tables[name].rows if row.cells and row.cells[at].best}
                assert shown == best, (name, metric, parts)
                sets += bool(best)
    assert sets > 4
    for column, metric in (("Epoch time (s)", "epoch_time_s"), ("Test score (%)", "test_at_best_val")):
        at = tables["leaderboard"].columns.index(column)
        for parts in section.parts:
            found = standing(section, metric, parts)
            best = behind_none(found)
            rows = [row for row in tables["leaderboard"].rows if row.parts == parts]
            shown = {row.variant.label for row in rows if row.variant and row.cells[at].best}
            assert shown == (best if len(best) < len(found) else set())


def test_of_one_seed_nothing_is_bold_but_what_is_exact_or_fourfold(write: Write) -> None:
    tables = section_tables(write(METHODS, seeds=(0,), parts=(2,)))
    bold = {
        (name, column)
        for name, table in tables.items()
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=bool(row.cells))
        if cell.best
    }
    assert {column.split(" (")[0] for _, column in bold} <= {"Sent per epoch", "Epoch time"}
