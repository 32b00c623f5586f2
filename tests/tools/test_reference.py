"""The reference pages are what the code says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.runtime.method import METHODS
from tools.reference import index_page, method_page, pages, stale, suite_page, with_columns, write

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_committed_pages_are_up_to_date() -> None:
    assert not stale(REFERENCE, pages()), "run `make reference` and commit the pages"
    page = (REFERENCE.parent / "measurements.md").read_text()
    assert with_columns(page) == page, "run `make reference` and commit the page"
    assert all(f"| `{name}`" in page or f", `{name}`" in page for name in ("stat_kept_boundary", "loss"))


def test_every_option_of_a_method_is_on_its_page_or_once_for_all_of_its_family() -> None:
    page, index = method_page(METHODS.load("dgs")), index_page().split("## Options of all mini-batch methods")[1]
    for option in METHODS.load("dgs").Options.model_fields:
        assert (page + index).count(f"| `{option}` |") == 1
    assert "| `prefetch` |" in index
    assert "(index.md#options-of-all-mini-batch-methods)" in page
    assert "`explainer: harness` stands for `{node_size: 2.0, node_reduction: mean" in page


def test_pages_do_not_depend_on_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.npz").write_bytes(b"not a graph")
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    assert "mine" not in suite_page()


def test_what_is_there_no_more_is_removed(tmp_path: Path) -> None:
    named = {"suite.md": "# suite", "methods/full.md": "# full"}
    write(tmp_path, named)
    old = tmp_path / "methods" / "gone.md"
    old.write_text("# gone")
    assert stale(tmp_path, named) == [old]
    write(tmp_path, named)
    assert not old.exists()
    assert not stale(tmp_path, named)
    assert stale(tmp_path, named | {"suite.md": "# other"}) == [tmp_path / "suite.md"]
