"""What a suite says of the model."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from harness.spec import Spec, with_options

Products = Literal["auto", "aggregate-first", "transform-first"]
"""The order of A H W: the cheaper one for a layer's sizes, (A H) W, or A (H W)."""

KEPT = "kept"
"""Context of validation: of what was run. It fitted its layer then; to ask that would import torch."""


class ModelSpec(Spec):
    """Architecture shared by every trial of a suite."""

    name: str = Field("sage", description="graph layer: a name of `harness list models`")
    layers: int = Field(2, ge=1, le=1_000, description="graph layers")
    linear_layers: int = Field(0, ge=0, le=1_000, description="linear layers behind the graph layers")
    hidden: int = Field(64, ge=1, le=1 << 24, description="hidden width")
    norm: Literal["layer", "none"] = Field("none", description="normalisation between layers")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout on every layer's input")
    residual: bool = Field(False, description="add a layer's input to its output where the widths agree")
    heads: int = Field(4, ge=1, le=1_000, description="attention heads of gat; the hidden width must be divisible")
    order: int = Field(
        2, ge=1, le=100, description="highest power of A in mixhop; the hidden width must be divisible by order + 1"
    )

    options: dict[str, Any] = Field(
        default_factory=dict, description="the model's own options; write `name: {NAME: {option: value}}`"
    )

    @model_validator(mode="before")
    @classmethod
    def _name_with_options(cls, data: Any) -> Any:
        return with_options(data, "name", "options")

    @model_validator(mode="after")
    def _fits_its_layer(self, info: ValidationInfo) -> Self:
        if info.context == KEPT:
            return self
        from harness.models.layer import MODELS

        # A plugin's is checked where the suite's plugins are known.
        if (layer := MODELS.loaded(self.name)) is not None:
            layer.check_spec(self)
        return self

    @property
    def label(self) -> str:
        """Name and size: "sage-2+2x512" has 2 graph and 2 linear layers of width 512; h4: 4 heads, k2: order 2."""
        from harness.models.layer import MODELS

        tail = f"+{self.linear_layers}" if self.linear_layers else ""
        layer = MODELS.loaded(self.name)
        own = layer.label(self) if layer else ""
        return f"{self.name}-{self.layers}{tail}x{self.hidden}{own}"
