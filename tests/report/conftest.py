"""Results that reports are made from."""

from __future__ import annotations

from pathlib import Path

import pytest
from report.fake import write_results

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
