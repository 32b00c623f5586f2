"""The section of partitioners: what a partition is worth, and when that is not sure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report.fake import write_results

from harness.report import write_report
from harness.report.sweeps import PARTITIONER, find_partitioners
from harness.report.views.partition import PartitionersView, _worth
from harness.results.frames import load_inputs


def trials(made_s: float | None, *epochs: float) -> pd.DataFrame:
    columns = {"partition_s": made_s, "cut_percent": 10.0, "volume": 50, "boundary_imbalance": 1.5}
    return pd.DataFrame({"epoch_time_s": epochs} | columns)


def worth(**found: pd.DataFrame) -> dict[str, str]:
    return {cells[0].text: cells[-1].text for cells in _worth(found)}


def test_what_it_took_longer_is_won_back_by_shorter_epochs() -> None:
    """30 s more for epochs of 1 s instead of 2: 30 epochs; a partial epoch counts as one."""
    found = worth(random=trials(1, 1.99, 2.0, 2.01), metis=trials(31.5, 0.99, 1.0, 1.01), slow=trials(5, 2.99, 3, 3.01))
    assert found == {"random": "n/a", "metis": "31", "slow": "never"}


@pytest.mark.parametrize("epochs", [(1.0,), (0.5, 1.9, 3.0)])
def test_one_seed_or_a_scatter_wider_than_the_gain_is_not_sure(epochs: tuple[float, ...]) -> None:
    assert worth(random=trials(1, 1.9, 2.0, 2.1), metis=trials(31, *epochs))["metis"] == "not sure"


@pytest.mark.slow
def test_equal_partitioners_are_seldom_told_apart() -> None:
    """Of two partitioners with the same epochs one pays or never pays in 5 % of draws at most, both ways together."""
    rng, wrong, draws = np.random.default_rng(0), 0, 1000
    for _ in range(draws):
        a, b = rng.normal(1, 0.1, (2, 4))
        wrong += worth(random=trials(1, *a), metis=trials(2, *b))["metis"] != "not sure"
    assert wrong / draws <= 0.065  # 5 % and twice its error


def test_a_partition_of_which_nobody_knows_the_seconds_has_no_verdict() -> None:
    assert worth(random=trials(1, 2.0, 2.0, 2.1), file=trials(None, 1.0, 1.0, 1.1))["file"] == "n/a"


def test_the_section_has_a_row_for_each_method_and_partitioner(tmp_path: Path) -> None:
    for partitioner in ("metis", "random"):
        write_results(tmp_path, parts=(1, 2), seeds=(0, 1), epochs=4, partitioner=partitioner)
    (found,) = find_partitioners(load_inputs(tmp_path))
    assert set(found.frame[PARTITIONER]) == {"metis(cut)", "random"}
    table = PartitionersView(found).table()
    assert table is not None
    assert {(row.label, row.cells[1].text) for row in table.rows} >= {("full", "metis(cut)"), ("full", "random")}
    write_report(tmp_path, tmp_path / "out", ("html", "md"))
    assert "Which partitioner is worth its time?" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize("parts", [(1, 2), (1,)])
def test_one_partitioner_or_one_part_makes_no_section(tmp_path: Path, parts: tuple[int, ...]) -> None:
    write_results(tmp_path, parts=parts, seeds=(0, 1), epochs=4)
    assert find_partitioners(load_inputs(tmp_path)) == []
