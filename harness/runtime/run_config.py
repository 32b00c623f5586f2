"""Run configuration: options of methods, settings of training, and what of a trial a rank is given."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

from pydantic import AwareDatetime, BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator

from harness.models.layer import ModelSpec, Products, Work
from harness.runtime.codec import CodecName
from harness.spec import PluginSource, Presets, RowType, Spec, later, of_presets, with_options

Timing = Literal["plain", "breakdown", "wall", "off"]
# Timings whose epochs are measured phase by phase, with meters; others are only timed as a whole, or not at all.
IN_PHASES: frozenset[Timing] = frozenset(("plain", "breakdown"))
TrafficMode = Literal["count", "verify"]
EVALUATION_MIB = 64.0  # default of `train.evaluation_mib`
IN_CHUNKS = 4.0  # times `chunk_mib`, the memory of a chunked evaluation: 3.0 was the most measured
CHECKPOINT = "10 min"  # default of `train.checkpoint`
_CHECKPOINT = re.compile(r"off|([1-9]\d*) epochs?|(\d+(?:\.\d+)?) min")
CachePolicy = Literal["none", "random", "degree", "inclusion"]
BatchCache = Literal["none", "random", "degree", "presampled", "vip"]


class MethodOptions(Spec):
    """Options of a method: fields with defaults and descriptions, checked when a suite is read.

    Attributes:
        presets: what other options are at a value of one that names a set of theirs, in place of their defaults; what
            is given goes before. So a trial's options are complete whatever names them.
    """

    presets: ClassVar[Presets] = {}

    @model_validator(mode="before")
    @classmethod
    def _take_presets(cls, given: Any) -> Any:
        return of_presets(cls.presets, given) | given if isinstance(given, dict) else given

    @classmethod
    def option_defaults(cls) -> dict[str, Any]:
        """Return the default of every option that has one."""
        fields = cls.model_fields.items()
        return {key: field.get_default(call_default_factory=True) for key, field in fields if not field.is_required()}

    @classmethod
    def option_numbers(cls) -> list[str]:
        """Return the options with a number as default, but those with `repr=False`, which says little in labels."""
        return [
            key
            for key, value in cls.option_defaults().items()
            if cls.model_fields[key].repr and isinstance(value, int | float | list) and not isinstance(value, bool)
        ]


MAPPED: Any = later(
    "sharded", "features in the memory of their owners, or in files that these map, of which a CPU's memory holds what "
    "it has room for"
)  # fmt: skip


class FullGraphOptions(MethodOptions):
    """Options of every full-graph method."""

    precompute: bool = Field(
        False, description="exchange and aggregate the input features once, before the first epoch"
    )
    transform_before_exchange: bool = Field(False, description="exchange H W instead of H where that is fewer bytes")
    codec: CodecName = later(
        "none", "how rows and gradients are packed for an exchange, see `Codec`; evaluations are not"
    )
    overlap: bool = later(
        False, "sum over inner rows while boundary rows travel: full and bns-gcn, models that do not attend"
    )
    storage: Literal["sharded", "disk"] = MAPPED
    feedback: bool = later(False, "add what a row lost by the codec to the same row of the next epoch")

    @model_validator(mode="after")
    def _fed_back_what_is_lost(self) -> Self:
        if self.feedback and self.codec == "none":
            raise ValueError("feedback: without a codec no row loses anything: set `codec`, or leave it out")
        return self

    @property
    def for_costs(self) -> dict[str, Any]:
        """What `BytesCase.boundary_rows` takes of them."""
        whole = {"precompute": self.precompute, "transform_first": self.transform_before_exchange}
        return whole | {"codec": self.codec}

    @property
    def for_memory(self) -> dict[str, Any]:
        """What `MemoryCase.full_graph` takes of them."""
        return self.for_costs | {"feedback": self.feedback, "on_disk": self.storage == "disk"}


class MiniBatchOptions(MethodOptions):
    """Options of every mini-batch method."""

    prefetch: int = Field(
        0, ge=0, repr=False, description="batches sampled and fetched ahead of the training; a breakdown wants 0"
    )
    pool: int = later(
        0, "batches drawn at once by as many threads as the rank has, whenever none is left, while the training waits; "
        "0: each at its step", ge=0, repr=False,
    )  # fmt: skip
    storage: Literal["sharded", "host", "disk"] = Field(
        "sharded", description="features in the memory of their owners, all of them in the host's memory, or in files "
        "of a disk, from which owners read them for each batch"
    )  # fmt: skip
    on_disk: RowType = later("float32", "what features are rounded to in the files of storage 'disk'")
    cache: BatchCache = Field(
        "none", description="which remote nodes' input features a rank keeps (storage 'host': which nodes' its device "
        "does; 'disk': remote and own ones that memory does): those of highest degree, those that most batches of an "
        "epoch drawn beforehand read, or those of the highest chance to be read ('vip')"
    )  # fmt: skip
    capacity: float = Field(
        0.3, ge=0, le=1, repr=False, description="nodes that are cached, as a share of the training graph's"
    )
    feature_rate: float = Field(
        1.0, gt=0, le=1, description="share of the dimensions of remote rows (storage 'host': of all rows) that "
        "travel, random ones each step; the others are read as 0"
    )  # fmt: skip
    feature_loss: float = Field(
        0.0, ge=0, lt=1, description="chance that an input value, a local one too, is read as 0 in a step"
    )

    @model_validator(mode="after")
    def _rounded_on_a_disk(self) -> Self:
        if self.storage != "disk" and self.on_disk != "float32":
            raise ValueError(f"on_disk: storage '{self.storage}' has no files: set storage 'disk', or leave it out")
        return self

    @property
    def asks_owners(self) -> bool:
        """Whether draws ask the owners of remote nodes for their neighbours."""
        return False

    @property
    def stays_in_part(self) -> bool:
        """Whether a rank's batches are of its own nodes alone, for which no other rank is asked."""
        return False

    @property
    def knows_chances(self) -> bool:
        """Whether each node's chance to be read is known before anything is drawn; see `MiniBatchMethod.chances`."""
        return False

    @model_validator(mode="after")
    def _chances_of_vip(self) -> Self:
        if self.cache == "vip" and not self.knows_chances:
            raise ValueError("cache: 'vip' needs fan-outs, uniform draws and the whole graph; take 'presampled'")
        return self

    @model_validator(mode="after")
    def _drawn_ahead_or_at_once(self) -> Self:
        if self.pool and self.prefetch:
            raise ValueError("pool: its batches are not drawn during the training; leave prefetch at 0, or pool")
        return self


class NodeBatchOptions(MiniBatchOptions):
    """Options of methods whose batches are training nodes."""

    batch_size: int = Field(1024, ge=0, description="targets a step and rank; 0: all its training nodes")


class NeighbourOptions(NodeBatchOptions):
    """Options of methods that read rows of the topology by `Topology.rows` alone, one layer after the other.

    Those of a batch's targets, the first, are the rank's `own`.
    """

    topology: Literal["shared", "owner"] = later(
        "shared", "where neighbours of remote nodes come from: a map of the whole graph, which every rank reads, or "
        "their owners, which are asked layer by layer"
    )  # fmt: skip

    @property
    def asks_owners(self) -> bool:
        """See `MiniBatchOptions`."""
        return self.topology == "owner"


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
        "float32", description="of features, weights, messages; bf16: float32, but for operands of training's products"
    )
    inductive: bool | None = Field(None, description="train on the training subgraph only; default: the data set's")
    cores: int | None = Field(
        None, ge=1, description="cores that a rank is pinned to, helpers' threads included; default: cores / ranks"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads a rank; default: its cores")
    spmm: Literal["auto", "torch", "dgl", "numba", "triton"] = Field("auto", description="SpMM engine")
    products: Products = Field(
        "auto", description="order of A H W in sage, gcn and gat where the method's options and exchanges leave it open"
    )
    warmup: int | None = Field(
        None, ge=0, description="epochs left out of timings; default: a tenth of them, 1 to 5, but never all"
    )
    checksum_every: int = Field(10, ge=1, description="epochs between checks that replicas are bit-identical")
    pos_weight: float = Field(
        1.0, gt=0, description="multi-label only: factor of the positive term of binary cross-entropy"
    )
    evaluation_mib: float = later(
        EVALUATION_MIB, "MiB of boundary rows received at once in exact evaluations and in `precompute`", gt=0
    )
    eval_memory: ByteSize | None = later(
        None, "memory that a rank's exact evaluation takes at most, e.g. `2GiB`: it then goes through the nodes chunk "
        "by chunk, and rows of layers wait in files; `precompute` and `sign` aggregate some columns of the features at "
        "a time; default: all of a rank's nodes at once", gt=0,
    )  # fmt: skip
    cuda_graphs: bool = later(
        False, "device cuda, one part, timing wall or off, a method whose steps recur (full): forward and backward "
        "pass are captured once and replayed; not measured"
    )  # fmt: skip
    sampled_eval: bool = Field(False, description="mini-batch methods only: also score by the method's own sampler")
    checkpoint: str = Field(
        CHECKPOINT, description="how often a trial's state is kept, so that it goes on from there if it is cut off: "
        "`10 min`, `50 epochs`, or `off`"
    )  # fmt: skip

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
        if isinstance(data, dict) and data.get("message_precision") == "same":  # in records of before `codec`
            data = {key: value for key, value in data.items() if key != "message_precision"}
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
    def chunk_mib(self) -> float:
        """MiB that a chunked evaluation has of each thing at once."""
        return self.evaluation_mib if self.eval_memory is None else self.eval_memory / IN_CHUNKS / 2**20

    @property
    def stored(self) -> Literal["float32", "float64"]:
        """What features, weights and messages are stored as."""
        return "float64" if self.precision == "float64" else "float32"

    @property
    def itemsize(self) -> int:
        """Bytes of a stored value."""
        return 8 if self.stored == "float64" else 4

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


LARGEST_CACHE = 128 << 20  # bytes: also the table whose rows `machine_rates` reads from memory


class Rates(BaseModel):
    """What a rank of one thread reaches while every core has one."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    machine: str  # see `environment.machine`
    when: AwareDatetime
    ranks: int
    measured: dict[str, float]  # bytes or operations a second, and `latency_s` of an exchange; see `machine_rates`

    def gather(self, width: float, kind: str) -> float:
        """Return the bytes a second of summed rows of `width` float32 values: "gather" from memory, or "cached".

        Between measured widths it is a line in logarithms.
        """
        known = sorted((int(key.split()[1]), rate) for key, rate in self.measured.items() if key.startswith(kind))
        for (low, slow), (high, fast) in pairwise(known):
            if width <= high:
                share = max(0.0, math.log(width / low) / math.log(high / low))
                return float(slow ** (1 - share) * fast**share)
        return known[-1][1]

    def seconds(self, work: Work, *, cached: bool = True, rounded: bool = False) -> float:
        """Return what one thread takes for `work` at these rates.

        Rows are read from a core's cache, but those of a matrix beyond `LARGEST_CACHE` from memory the first time; or
        where they are not `cached`, always. `rounded`: products and sums are of operands rounded to bfloat16; rows
        of half the bytes are read at the rate of float32 rows of as many bytes.
        """
        total = work.flops / self.measured["product bfloat16" if rounded else "product float32"]
        for values, entries, distinct, rounds in work.rows:
            width = values / 2 if rounded and rounds else values
            first = distinct if 4 * width * distinct > LARGEST_CACHE else 0
            again = entries - first if cached else 0
            rows = again / self.gather(width, "cached") + (entries - again) / self.gather(width, "gather")
            total += 4 * width * rows
        return total


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
