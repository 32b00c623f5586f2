"""Runs a command in this process, and a text that several tests expect."""

from __future__ import annotations

import pytest

from harness.cli import main

NO_GPU = "torch can use no GPU here: it is built without CUDA (install its CUDA build, or --device cpu)"


def harness(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Its exit code, what it printed, and its errors."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    captured = capsys.readouterr()
    return int(exited.value.code or 0), captured.out, captured.err
