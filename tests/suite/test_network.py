from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.suite.sections import NetworkSpec, latency_text, parse_latency, parse_rate, rate_text


@pytest.mark.parametrize(
    ("written", "bits"),
    [("100mbit", 1e8), ("1000mbit", 1e9), ("2.5 Gbit", 2.5e9), ("64kbit", 64e3), ("unlimited", math.inf)],
)
def test_rates(written: str, bits: float) -> None:
    assert parse_rate(rate_text(parse_rate(written.lower() if "Gbit" not in written else written))) == bits


@pytest.mark.parametrize(("written", "seconds"), [("50us", 5e-5), ("0.5ms", 5e-4), ("2s", 2.0), ("0", 0.0)])
def test_latencies(written: str, seconds: float) -> None:
    assert parse_latency(latency_text(parse_latency(written))) == pytest.approx(seconds)


@given(st.floats(1, 1e14))
def test_rates_survive_being_written(bits: float) -> None:
    assert parse_rate(rate_text(bits)) == pytest.approx(bits, rel=1e-5)


def test_the_same_network_is_written_one_way() -> None:
    assert NetworkSpec(rate="1000mbit", latency="0.05ms") == NetworkSpec(rate="1gbit", latency="50us")
    assert NetworkSpec(rate="1gbit", latency="0ms").label == "1gbit"
    assert NetworkSpec(rate="1gbit", latency="50us", ranks_per_host=2).label == "1gbit+50us, 2 ranks a host"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": "fast"},
        {"rate": "1gb"},
        {"rate": 1000},
        {"rate": "0mbit"},
        {"rate": "-1mbit"},
        {"latency": "50"},
        {"latency": "5 minutes"},
        {"ranks_per_host": 0},
    ],
)
def test_what_is_not_understood_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NetworkSpec(**wrong)
