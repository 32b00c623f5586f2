from __future__ import annotations

import pandas as pd
import pytest

from harness.results.stats import byte_unit, common_places, fixed, over_seeds, significant, time_unit


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00012345, "0.000123"), (0.9996, "1.00"), (1.0, "1.00"), (12.345, "12.3"), (98765.0, "98,765")],
)
def test_significant(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (0.0004, "<0.001"), (0.0006, "0.001"), (1.5, "1.500")])
def test_what_is_not_zero_never_looks_like_zero(value: float, text: str) -> None:
    assert fixed(value, 3) == text


def test_over_seeds_leaves_gaps_out() -> None:
    stat = over_seeds(pd.Series([1.0, None, 4.0]))
    assert stat is not None
    assert (stat.mean, stat.n) == (2.5, 2)
    assert stat.std == pytest.approx(2.1213203)
    assert over_seeds(pd.Series([None, None], dtype=float)) is None
    alone = over_seeds(pd.Series([3.0]))
    assert alone is not None
    assert alone.std is None


def test_units() -> None:
    assert byte_unit(3 * 2**30)[1] == "GiB"
    assert byte_unit(2**20) == (2.0**20, "MiB")
    assert byte_unit(0)[1] == byte_unit(None)[1] == "B"
    assert time_unit(0.2) == (1e-3, "ms")
    assert time_unit(2.0) == (1.0, "s")
    assert common_places([12.0, 0.0321]) == 4
    assert common_places([]) == 0
