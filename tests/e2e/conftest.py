"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.cli import CommandLine


@pytest.fixture
def command(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """The command line in a fresh directory; data sets are prepared once for all tests."""
    return CommandLine(tmp_path, tmp_path_factory.getbasetemp() / "cache")
