"""What a suite says of the model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from harness.data.spec import Spec

Products = Literal["auto", "aggregate-first", "transform-first"]
"""The order of A H W: the cheaper one for a layer's sizes, (A H) W, or A (H W)."""


class ModelSpec(Spec):
    """Architecture shared by every trial of a suite."""

    name: Literal["sage", "gcn", "gat", "mixhop"] = Field("sage", description="graph layer")
    layers: int = Field(2, ge=1, description="graph layers")
    linear_layers: int = Field(0, ge=0, description="linear layers behind the graph layers")
    hidden: int = Field(64, ge=1, description="hidden width")
    norm: Literal["layer", "none"] = Field("none", description="normalisation between layers")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout on every layer's input")
    residual: bool = Field(False, description="add a layer's input to its output where the widths agree")
    heads: int = Field(4, ge=1, description="attention heads of gat; the hidden width must be divisible")
    order: int = Field(
        2, ge=1, description="highest power of A in mixhop; the hidden width must be divisible by order + 1"
    )

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.name == "gat" and self.hidden % self.heads:
            raise ValueError(f"heads: a hidden width of {self.hidden} is not divisible by {self.heads}")
        return self

    @model_validator(mode="after")
    def _orders_share_the_width(self) -> Self:
        if self.name == "mixhop" and self.hidden % (self.order + 1):
            raise ValueError(
                f"order: a hidden width of {self.hidden} is not divisible by {self.order + 1}, the powers "
                f"0 to {self.order}"
            )
        return self

    @property
    def hops(self) -> int:
        """Blocks that a graph layer runs on, one behind the other."""
        return self.order if self.name == "mixhop" else 1

    @property
    def label(self) -> str:
        """Name and size: "sage-2+2x512" has 2 graph and 2 linear layers of width 512; "gat-2x64h4" 4 heads.

        "mixhop-2x96k2" is of order 2.
        """
        tail = f"+{self.linear_layers}" if self.linear_layers else ""
        own = {"gat": f"h{self.heads}", "mixhop": f"k{self.order}"}.get(self.name, "")
        return f"{self.name}-{self.layers}{tail}x{self.hidden}{own}"
