from __future__ import annotations

import pytest
from pydantic import ValidationError

from harness.runtime.run_config import TrainSpec


@pytest.mark.parametrize(
    ("spec", "epochs"),
    [
        ({"eval_every": 2}, [1, 3, 4]),
        ({"eval_every": 2, "final_eval": False}, [1, 3]),
        ({"eval_every": 0}, [4]),
        ({"eval_every": 0, "final_eval": False}, []),
        ({"eval_every": 5, "final_eval": False}, [4]),
        ({"eval_every": 6, "final_eval": False}, []),
    ],
)
def test_which_epochs_are_evaluated(spec: dict[str, object], epochs: list[int]) -> None:
    train = TrainSpec.model_validate({"epochs": 5, **spec})
    assert [epoch for epoch in range(5) if train.evaluates(epoch)] == epochs
    assert train.scored == bool(epochs)


@pytest.mark.parametrize("asked", [{"target": 0.9}, {"patience": 2}, {"sampled_eval": True}])
def test_what_needs_scores_is_refused_without_any(asked: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=f"`{next(iter(asked))}` needs an evaluation"):
        TrainSpec.model_validate({"eval_every": 0, "final_eval": False, **asked})
    assert TrainSpec.model_validate({"epochs": 5, "eval_every": 5, "final_eval": False, **asked}).scored
