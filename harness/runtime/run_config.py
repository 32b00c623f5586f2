"""What a suite says of training."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from harness.models.spec import ModelSpec, Products
from harness.spec import PluginSource, Spec, with_options

Timing = Literal["plain", "breakdown", "wall", "off"]
IN_PHASES: frozenset[Timing] = frozenset(("plain", "breakdown"))
"""Timings whose epochs are measured phase by phase, with meters; others are only timed as a whole, or not at all."""

TrafficMode = Literal["count", "verify"]


EVALUATION_MIB = 64.0
"""Default of `train.evaluation_mib`."""

CHECKPOINT = "10 min"
"""Default of `train.checkpoint`."""
_CHECKPOINT = re.compile(r"off|([1-9]\d*) epochs?|(\d+(?:\.\d+)?) min")


class MethodSpec(Spec):
    """A method by name, with its options."""

    name: str = Field(description="a name of `harness list methods`")
    options: dict[str, Any] = Field(default_factory=dict, description="the method's own options")


class TrainSpec(Spec):
    """Training settings, the same for every method of a suite."""

    epochs: int = Field(100, ge=1, description="epochs at most")
    lr: float = Field(0.01, gt=0, description="learning rate")
    optimizer: str = Field("adam", description="a name of `harness list optimizers`")
    optimizer_options: dict[str, Any] = Field(
        default_factory=dict, description="its own; write `optimizer: {NAME: {option: value}}`"
    )
    schedule: str = Field("constant", description="of the learning rate: a name of `harness list schedules`")
    schedule_options: dict[str, Any] = Field(
        default_factory=dict, description="its own; write `schedule: {NAME: {option: value}}`"
    )
    lr_warmup: int = Field(0, ge=0, description="epochs in which the rate rises linearly, before the schedule begins")
    clip: float | None = Field(None, gt=0, description="norm that the gradient of all ranks is cut down to")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty; of adamw decoupled from the gradient")
    eval_every: int = Field(10, ge=0, description="epochs between evaluations; 0: only after the last")
    final_eval: bool = Field(True, description="evaluate after the last epoch, too; with neither there are no scores")
    patience: int | None = Field(None, ge=1, description="stop after so many evaluations without a better one")
    target: float | None = Field(None, gt=0, le=1, description="validation score whose time is recorded")
    stop_at_target: bool = Field(False, description="stop once `target` is reached")
    seconds: float | None = Field(
        None, gt=0, description="stop after the epoch in which the slowest rank has trained for so many seconds"
    )
    precision: Literal["float32", "float64", "bf16"] = Field(
        "float32",
        description="of features, weights, messages; bf16: float32, but for the operands of training's dense products",
    )
    message_precision: Literal["same", "bf16"] = Field(
        "same", description="of the embeddings and gradients that training exchanges; bf16: half the bytes of float32"
    )
    inductive: bool | None = Field(None, description="train on the training subgraph only; default: the data set's")
    cores: int | None = Field(
        None, ge=1, description="cores that a rank is pinned to, helpers' threads included; default: cores / ranks"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads a rank; default: its cores")
    spmm: Literal["auto", "torch", "dgl", "numba", "triton"] = Field("auto", description="SpMM engine")
    products: Products = Field(
        "auto", description="order of A H W in sage and gcn where the method's options and exchanges leave it open"
    )
    warmup: int | None = Field(
        None, ge=0, description="epochs left out of timings; default: a tenth of them, 1 to 5, but never all"
    )
    checksum_every: int = Field(10, ge=1, description="epochs between checks that replicas are bit-identical")
    pos_weight: float = Field(
        1.0, gt=0, description="multi-label only: factor of the positive term of binary cross-entropy"
    )
    evaluation_mib: float = Field(
        EVALUATION_MIB,
        gt=0,
        exclude_if=lambda mib: bool(mib == EVALUATION_MIB),
        description="MiB of boundary rows that a rank receives at once in exact evaluations and in `precompute`",
    )
    cuda_graphs: bool = Field(
        False,
        exclude_if=lambda captured: not captured,
        description="device cuda, one part, timing wall or off, a method whose steps recur (full): forward and "
        "backward pass are captured once and replayed; not measured",
    )
    sampled_eval: bool = Field(False, description="mini-batch methods only: also score by the method's own sampler")
    checkpoint: str = Field(
        CHECKPOINT,
        description="how often a trial's state is kept, so that it goes on from there if it is cut off: `10 min`, "
        "`50 epochs`, or `off`",
    )

    @field_validator("checkpoint", mode="before")
    @classmethod
    def _off_is_a_word(cls, given: Any) -> Any:
        return "off" if given is False else given  # YAML's `off`

    @field_validator("checkpoint")
    @classmethod
    def _epochs_or_minutes(cls, given: str) -> str:
        found = _CHECKPOINT.fullmatch(given)
        if found is None or (found[2] is not None and float(found[2]) == 0):
            raise ValueError("write `10 min`, `50 epochs` or `off`")
        return given

    @property
    def checkpoint_every(self) -> tuple[int | None, float | None]:
        """Epochs, and seconds, between two checkpoints; both None where none are kept."""
        found = _CHECKPOINT.fullmatch(self.checkpoint)
        assert found is not None
        epochs, minutes = found.groups()
        return None if epochs is None else int(epochs), None if minutes is None else 60 * float(minutes)

    @model_validator(mode="before")
    @classmethod
    def _names_with_options(cls, data: Any) -> Any:
        return with_options(with_options(data, "optimizer", "optimizer_options"), "schedule", "schedule_options")

    @model_validator(mode="after")
    def _scores_that_are_asked_for(self) -> Self:
        asked = [key for key in ("target", "patience", "sampled_eval") if getattr(self, key)]
        if asked and not self.scored:
            raise ValueError(f"`{asked[0]}` needs an evaluation: set `final_eval: true` or `eval_every`")
        if self.lr_warmup >= self.epochs and self.lr_warmup:
            raise ValueError(f"`lr_warmup` of {self.lr_warmup} leaves none of {self.epochs} epochs: make it smaller")
        return self

    def evaluates(self, epoch: int) -> bool:
        """Return whether an evaluation follows `epoch`, counted from 0."""
        due = self.eval_every > 0 and (epoch + 1) % self.eval_every == 0
        return due or (self.final_eval and epoch + 1 == self.epochs)

    @property
    def stored(self) -> Literal["float32", "float64"]:
        """What features, weights and messages are stored as."""
        return "float64" if self.precision == "float64" else "float32"

    @property
    def itemsize(self) -> int:
        """Bytes of a stored value."""
        return 8 if self.stored == "float64" else 4

    @property
    def message_itemsize(self) -> int:
        """Bytes of a value of the embeddings and gradients that are exchanged."""
        return 2 if self.message_precision == "bf16" else self.itemsize

    @property
    def scored(self) -> bool:
        """Whether there is any evaluation, unless the trial stops before."""
        return self.final_eval or 0 < self.eval_every <= self.epochs


class TuningRun(Spec):
    """What a trial of a tuning has of its own: it is scored on training and validation nodes alone."""

    study: int = Field(ge=0, description="which of the independent searches it belongs to")
    rungs: tuple[tuple[float, float], ...] = Field(
        (),
        description="pairs of training seconds and a validation score: it stops at the first evaluation after the "
        "seconds if none has been as good",
    )


class RunConfig(BaseModel):
    """What of a trial's configuration a rank needs; the rest (data set, partition) it is given as files."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: ModelSpec
    train: TrainSpec
    method: MethodSpec
    plugin: PluginSource | None = None
    plugins: dict[str, PluginSource] = Field(default_factory=dict)
    timing: Timing = "plain"
    traffic: TrafficMode = "count"
    network: dict[str, Any] | None = Field(None, description="of ranks in namespaces of their own")
    tuning: TuningRun | None = None
    seed: int = Field(ge=0)
    device: Literal["cpu", "cuda"]
