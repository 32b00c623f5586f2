"""Results made by hand: trials, their figures, and claims about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.models.spec import ModelSpec
from harness.runtime.spec import MethodSpec, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.schema import Claim, TrialConfig


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


def epochs(times: Sequence[tuple[TrialConfig, Sequence[Sequence[float]]]] = (), steps: int = 4) -> pd.DataFrame:
    """`times` [rank][epoch] in seconds; every third epoch has barriers."""
    return pd.DataFrame(
        [
            {
                "suite": "demo",
                "trial": t.id,
                "epoch": epoch,
                "rank": rank,
                "epoch_time_s": seconds,
                "steps": steps,
                "timing": "plain" if epoch % 3 else "breakdown",
            }
            for t, ranks in times
            for rank, own in enumerate(ranks)
            for epoch, seconds in enumerate(own)
        ],
        columns=["suite", "trial", "epoch", "rank", "epoch_time_s", "steps", "timing"],
    )


def claim(metric: str, expect: dict[str, Any], of: dict[str, Any], **others: Any) -> Claim:
    return Claim.model_validate(
        {"name": "a claim", "source": "here", "metric": metric, "of": of, "expect": expect} | others
    )
