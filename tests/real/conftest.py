"""Fixtures of the tests on real graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
from real.runs import Runs


@pytest.fixture(scope="module")
def runs(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs suites; data is prepared once for all tests, results are a module's own."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    return Runs(data_dir, cache, tmp_path_factory.mktemp("results"))
