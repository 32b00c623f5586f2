"""What mini-batches read and fetch, in the report: each number traced to the stored epochs."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, NODES, Method, write_results
from report.measured import FULL, one_section, records, rows_of, section_tables

from harness.report.sections import Section
from harness.report.table import Table
from harness.report.views.batches import BatchesView
from harness.report.views.sampling import SamplingView

EPOCHS = 22


def skewed(version: str = "skewed", distortion: float = 4.0, cache: str = "none", base: str = "ladies") -> Method:
    return "skewed", {"version": version, "distortion": distortion, "cache": cache, "base": base}


VARIANTS = (skewed("full"), skewed("local"), skewed(), skewed(distortion=16.0), skewed(cache="degree"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("batches")
    write_results(
        path, methods=(FULL, *VARIANTS), parts=(2,), seeds=(0, 1), epochs=EPOCHS, train={"sampled_eval": True}
    )
    return path


@pytest.fixture(scope="module")
def section(root: Path) -> Section:
    return one_section(root)


@pytest.fixture(scope="module")
def tables(section: Section) -> dict[str, Table]:
    return section_tables(section)


def shown(table: Table, *, cache: str = "none", distortion: int = 4, version: str = "skewed") -> dict[str, str]:
    label = f"skewed (cache={cache}, distortion={distortion}, version={version})"
    row = next(row for row in table.rows if row.label == label)
    return dict(zip(table.columns, (cell.text for cell in row.cells), strict=True))


def stored(root: Path, options: dict[str, Any], column: str) -> float:
    """Mean over seeds and epochs after warm-up of the sum over ranks."""
    means = []
    for record in records(root, "skewed", 2):
        if record["config"]["method"]["options"] == options:
            rows = rows_of(root, record)
            means.append(sum(row[f"stat_{column}_nodes"] for row in rows) / len({r["epoch"] for r in rows}))
    return statistics.mean(means)


def test_nodes_and_what_is_saved(root: Path, tables: dict[str, Table]) -> None:
    full = stored(root, VARIANTS[0][1], "remote")
    cases: list[tuple[Method, dict[str, Any]]] = [
        (VARIANTS[2], {}),
        (VARIANTS[3], {"distortion": 16}),
        (VARIANTS[4], {"cache": "degree"}),
    ]
    for variant, key in cases:
        row = shown(tables["batches"], **key)
        read, remote, found = (stored(root, variant[1], name) for name in ("input", "remote", "cached"))
        assert row["Input nodes"] == f"{read:,.0f}" == f"{2 * NODES + 1:,}"
        assert row["Remote"] == f"{remote:,.0f}"
        assert row["Remote (%)"] == f"{100 * remote / read:.1f}"
        assert row["Cached"] == f"{found:,.0f}"
        assert row["Communicated"] == f"{remote - found:,.0f}"
        assert row["Test accuracy (%)"] == next(
            cell.text for r in tables["accuracy"].rows if r.label.endswith(_ending(key)) for cell in r.cells[:1]
        )
        # What has a cache has no partner that is not skewed: compared with the largest.
        assert row["Saved (×)"] == f"{full / (remote - found):.2f}"
    assert shown(tables["batches"], distortion=16)["Saved (×)"] == "4.00"


def _ending(key: dict[str, Any]) -> str:
    return f"(cache={key.get('cache', 'none')}, distortion={key.get('distortion', 4)}, version=skewed)"


def test_local_sends_nothing_and_full_graph_methods_have_no_row(tables: dict[str, Table]) -> None:
    table = tables["batches"]
    local = shown(table, version="local")
    assert (local["Remote"], local["Communicated"], local["Saved (×)"]) == ("0", "0", "all")
    order = [row.label.split("version=")[1] for row in table.rows if row.cells]
    assert order == ["full)", "skewed)", "skewed)", "skewed)", "local)"]
    counts = [int(row.cells[4].text.replace(",", "")) for row in table.rows if row.cells]
    assert counts == sorted(counts, reverse=True)


def test_each_base_is_compared_with_its_own(tmp_path: Path) -> None:
    methods = [skewed(version, base=base) for base in ("ladies", "saint") for version in ("full", "skewed")]
    write_results(tmp_path, methods=methods, parts=(2,), seeds=(0,), epochs=6)
    table = section_tables(one_section(tmp_path))["batches"]
    saved = {row.label: row.cells[5].text for row in table.rows if row.cells}
    assert saved == {
        f"skewed (base={base}, version={version})": "1.00" if version == "full" else "2.00"
        for base in ("ladies", "saint")
        for version in ("full", "skewed")
    }


def test_sampled_scores_are_a_column_where_there_are_any(root: Path, tables: dict[str, Table], tmp_path: Path) -> None:
    table = tables["accuracy"]
    place = [group.title for group in table.groups].index("Test, sampled (%)")
    row = next(row for row in table.rows if row.label.endswith(_ending({})))
    chosen = [r for r in records(root, "skewed", 2) if r["config"]["method"]["options"] == VARIANTS[2][1]]
    scores = [100 * record["result"]["sampled_test_at_best_val"] for record in chosen]
    assert row.cells[place].text.startswith(f"{statistics.mean(scores):.2f} ± ")
    assert next(row for row in table.rows if row.label == "full").cells[place].text == "not available"
    write_results(tmp_path, methods=(FULL, skewed()), parts=(2,), seeds=(0,), epochs=6)
    assert len(section_tables(one_section(tmp_path))["accuracy"].groups) == 2


def test_the_figure(section: Section, tmp_path: Path) -> None:
    picture = BatchesView(section).figure()
    assert picture is not None
    assert picture.title == "Score and communicated nodes"
    assert SamplingView(section).figure() is None  # nobody asks for a share of the boundary
    write_results(tmp_path, methods=(FULL, METHODS[0]), parts=(2,), seeds=(0,), epochs=6)
    assert BatchesView(one_section(tmp_path)).figure() is None
