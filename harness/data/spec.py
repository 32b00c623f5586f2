"""What a suite says of its data and of how the graph is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from harness.spec import Spec, with_options


class DatasetSpec(Spec):
    """A data set by name, with the options of its loader or generator."""

    name: str = Field(description="a name of `harness list datasets`")
    options: dict[str, Any] = Field(default_factory=dict, description="loader or generator options")


class PartitionSpec(Spec):
    """How the nodes are given to ranks."""

    parts: int = Field(1, ge=1, description="number of parts = number of ranks")
    method: str = Field("metis", description="partitioner: a name of `harness list partitioners`")
    objective: Literal["volume", "cut"] = Field("volume", description="what METIS minimises")
    balance: Literal["nodes", "edges"] = Field("nodes", description="what every part has equally much of")
    seed: int = Field(0, ge=0, description="seed of the partitioner")
    file: Path | None = Field(None, description="for `file`: a .npy vector, the part of each node")
    options: dict[str, Any] = Field(
        default_factory=dict, description="the partitioner's own; write `method: {NAME: {option: value}}`"
    )

    @model_validator(mode="before")
    @classmethod
    def _method_with_options(cls, data: Any) -> Any:
        return with_options(data, "method", "options")
