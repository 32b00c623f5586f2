"""Results that reports are made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, Method, write_results
from report.measured import EPOCHS, FULL, PIPELINED, SKEWED, Write, one_section, section_tables

from harness.report.sections import Section
from harness.report.table import Table
from harness.suite.schema import TrialConfig


@pytest.fixture(scope="session")
def results_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets (one a twin), four variants, P = 1 and 2, three seeds; some trials fail."""

    def fails(config: TrialConfig) -> tuple[str, str] | None:
        if config.dataset.name == "twin" and config.method.name == "full" and config.partition.parts == 2:
            return "oom", "rank 1 killed\nout of memory"
        if config.dataset.name == "digits" and config.method.name == "graphsage" and config.seed == 2:
            return "diverged", "loss is NaN at epoch 3 <b>"
        return None

    return write_results(
        tmp_path_factory.mktemp("results"),
        datasets=[("digits", "real", ""), ("twin", "twin", "twin of reddit at scale 0.02")],
        fails=fails,
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(methods: tuple[Method, ...] = (FULL,), **chosen: Any) -> Section:
        chosen = {"parts": (2,), "seeds": (0,), "epochs": EPOCHS} | chosen
        return one_section(write_results(tmp_path, methods=methods, **chosen))

    return written


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(
        tmp_path_factory.mktemp("measured"),
        methods=(FULL, METHODS[0], PIPELINED, SKEWED, METHODS[2]),
        seeds=(0, 1),
        epochs=EPOCHS,
        settings={"timing": "breakdown", "traffic": "verify"},
    )


@pytest.fixture(scope="session")
def section(root: Path) -> Section:
    return one_section(root)


@pytest.fixture(scope="session")
def tables(section: Section) -> dict[str, Table]:
    return section_tables(section)
