"""Names of a method's hooks."""

from __future__ import annotations

import pytest

from harness import FullGraphMethod


def test_older_names_of_warnings_are_read_for_one_release() -> None:
    with pytest.warns(DeprecationWarning, match="remarks is called warnings now"):

        class Older(FullGraphMethod):
            @property
            def remarks(self) -> list[str]:
                return ["emulated"]

    assert vars(Older)["warnings"] is vars(Older)["remarks"]
