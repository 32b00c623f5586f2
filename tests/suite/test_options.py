from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from pydantic import Field

from harness.suite.expand import takes_list
from harness.suite.schema import grid


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, False),
        (str, False),
        (Literal["a", "b"], False),
        (int | None, False),
        (dict[str, list[int]], False),
        (list[int], True),
        (int | list[int], True),
        (Union[int, list[int]], True),  # noqa: UP007
        (Optional[list[int]], True),  # noqa: UP045
        (Annotated[int | list[int], Field(ge=1)], True),
        (tuple[int, ...], True),
        (list, True),
        (Any, False),
    ],
)
def test_takes_list(annotation: Any, expected: bool) -> None:
    assert takes_list(annotation) is expected


def test_grid_varies_the_alphabetically_first_slowest_whatever_the_order_of_keys() -> None:
    expected = [{"a": 2, "b": 0}, {"a": 2, "b": 1}, {"a": 1, "b": 0}, {"a": 1, "b": 1}]
    assert list(grid({"a": [2, 1], "b": [0, 1]})) == expected
    assert list(grid(OrderedDict(b=[0, 1], a=[2, 1]))) == expected
    assert list(grid({})) == [{}]
    assert list(grid({"a": []})) == []


def test_a_list_option_is_a_grid_only_of_lists() -> None:
    assert list(grid({"f": [1, 2]}, {"f"})) == [{"f": [1, 2]}]
    assert list(grid({"f": [[1, 2], 3]}, {"f"})) == [{"f": [1, 2]}, {"f": 3}]
