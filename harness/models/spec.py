"""What a suite says of the model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.data.spec import Spec


class ModelSpec(Spec):
    """Architecture shared by every trial of a suite."""

    name: Literal["sage", "gcn"] = Field("sage", description="graph layer")
    layers: int = Field(2, ge=1, description="graph layers")
    linear_layers: int = Field(0, ge=0, description="linear layers behind the graph layers")
    hidden: int = Field(64, ge=1, description="hidden width")
    norm: Literal["layer", "none"] = Field("none", description="normalisation between layers")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout on every layer's input")
    residual: bool = Field(False, description="add a layer's input to its output where the widths agree")

    @property
    def label(self) -> str:
        """Name and size, e.g. "sage-2+2x512": 2 graph and 2 linear layers of width 512."""
        tail = f"+{self.linear_layers}" if self.linear_layers else ""
        return f"{self.name}-{self.layers}{tail}x{self.hidden}"
