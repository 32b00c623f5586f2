"""Two ranks on a shaped network exchange messages: payload a second is within a tenth of the rate."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest
from support.exchanges import TESTS, exchanges, rates

from harness.suite.network import NetworkSpec, parse_rate

SMALL, LARGE = 2_000_000, 64_000_000


@pytest.mark.root
@pytest.mark.parametrize(("rate", "small", "large"), [("100mbit", 5, 1), ("1gbit", 25, 5)])
def test_rate(rate: str, small: int, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fastest exchange: what other processes add to a time is never negative."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    messages = [SMALL] * small + [LARGE] * large
    measured = rates(exchanges(NetworkSpec(rate=rate), 2, messages, tmp_path), messages)
    for size, found in ((SMALL, measured[:small]), (LARGE, measured[small:])):
        shares = [bits_s / parse_rate(rate) for bits_s in found]
        print(f"\n{rate}, {size / 1e6:g} MB: best {max(shares):.1%}, median {median(shares):.1%}", end="")
        assert 0.9 < max(shares) < 1.1
