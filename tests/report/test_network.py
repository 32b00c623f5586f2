"""The section of networks: its figure, its table and its CSV."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from support.networks import write_networks

from harness.report import write_report
from harness.report.sweeps import find_networks
from harness.results.frames import load_inputs


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("networks")
    write_report(write_networks(root, seeds=(0, 1)), root / "out", ("html", "md", "csv", "svg"))
    return root / "out"


def test_the_csv_holds_what_was_measured_and_projected(out: Path) -> None:
    """0.3 s compute, 0.02 s software, wire 1.0 or 0.1 s at 12 Mbit/s; shaped trials 10 % slower."""
    frame = pd.read_csv(out / "network.csv")
    assert len(frame) == 2 * 2 * 3  # methods, seeds, networks; not the trials of one rank
    shaped = frame[frame["network"] != "none"].set_index(["label", "network", "seed"])
    assert shaped["error"].to_numpy() == pytest.approx(1 / 1.1 - 1)
    assert shaped.loc[("full", "12.112mbit", 0), "projected_s"] == pytest.approx(1.3)
    assert shaped.loc[("full", "12.112mbit", 1), "epoch_time_s"] == pytest.approx(1.43)
    assert shaped.loc[("bns-gcn (rate=0.1)", "12.112mbit", 0), "projected_s"] == pytest.approx(0.4)
    assert shaped.loc[("bns-gcn (rate=0.1)", "100mbit", 0), "projected_s"] == pytest.approx(0.32)
    loopback = frame[frame["network"] == "none"]
    assert (loopback["base"] == loopback["trial"]).all()
    assert loopback["projected_s"].isna().all()


def test_figure_and_table_are_on_the_page(out: Path) -> None:
    assert (out / "figures" / "network-digits-sage-rate.svg").stat().st_size > 10_000
    ElementTree.parse(out / "figures" / "network-digits-sage-rate.svg")
    html, markdown = (out / "index.html").read_text(), (out / "report.md").read_text()
    assert 'id="network-digits-sage-rate"' in html
    assert 'href="network.csv"' in html
    assert "projected from the unshaped trial (alpha-beta model)" in html
    assert "| full | 12.112mbit | 1.43 | 1.30 | -9.1 |" in markdown
    assert "| bns-gcn (rate=0.1) | none | 0.320 | base | n/a |" in markdown
    assert "of the errors the largest. In all rows: P 2." in markdown


def test_trials_of_one_network_make_no_section(tmp_path: Path) -> None:
    inputs = load_inputs(write_networks(tmp_path, networks=[None]))
    assert find_networks(inputs) == []
    write_report(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out" / "network.csv").exists()
