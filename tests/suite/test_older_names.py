"""Options that were renamed: suites and choices that have the older name."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import UserError
from harness.suite.expand import expand, older_names
from harness.suite.schema import Suite
from harness.suite.select import matches


def suite(**sections: Any) -> Suite:
    return Suite.model_validate({"name": "s", "datasets": ["digits"], "methods": ["full"], **sections})


OLDER: dict[str, Any] = {
    "methods": [{"full": {"narrow": [False, True]}}, {"bns-gcn": {"narrow": True, "rate": 0.5}}],
    "device": "cpu",
}


def test_an_options_older_name_is_read_and_keeps_the_trials_ids() -> None:
    older = suite(**OLDER, exclude=[{"method": "full", "narrow": False}])
    trials = expand(older)
    assert [(t.id, t.label) for t in trials] == [  # the ids are those of the code that knew only the older name
        ("036a51c712c1", "digits sage-2x64 full(transform_before_exchange=true) P=1 seed=0"),
        ("172d73595da0", "digits sage-2x64 bns-gcn(transform_before_exchange=true,rate=0.5) P=1 seed=0"),
    ]
    assert [matches(trials[0], f"{name}=true") for name in ("narrow", "transform_before_exchange")] == [True, True]
    assert older_names(older) == [
        f"methods.{i}.{name}.narrow: 'narrow' is called 'transform_before_exchange' now; it is read as before"
        for i, name in enumerate(["full", "bns-gcn"])
    ]
    assert older_names(suite(methods=[{"full": {"transform_before_exchange": True}}])) == []


def test_an_option_under_both_names_is_refused() -> None:
    both = suite(methods=[{"full": {"narrow": True, "transform_before_exchange": False}}])
    message = "methods.0.full.narrow: given twice: 'narrow' is an older name of 'transform_before_exchange'"
    with pytest.raises(UserError, match=message):
        expand(both)
