"""Results made by hand: trials, their figures, and claims about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.models.layer import ModelSpec
from harness.runtime.run_config import MethodSpec, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.schema import TrialConfig
from harness.suite.sections import Claim


def trial(method: str, seed: int = 0, parts: int = 2, dataset: str = "digits", **options: Any) -> TrialConfig:
    return TrialConfig(
        dataset=DatasetSpec(name=dataset),
        model=ModelSpec(),
        train=TrainSpec(epochs=10),
        partition=PartitionSpec(parts=parts),
        method=MethodSpec(name=method, options=options),
        seed=seed,
        device="cpu",
    )


def frame(figures: Sequence[tuple[TrialConfig, Mapping[str, Any]]]) -> pd.DataFrame:
    """One row a trial, of trials that ended well unless their figures say otherwise."""
    base = {"suite": "demo", "status": "ok", "reason": None, "origin": "real", "device": "cpu"}
    return pd.DataFrame([base | {"trial": t.id} | dict(own) for t, own in figures])


def claim(metric: str, expect: dict[str, Any], of: dict[str, Any], **others: Any) -> Claim:
    return Claim.model_validate(
        {"name": "a claim", "source": "here", "metric": metric, "of": of, "expect": expect} | others
    )
