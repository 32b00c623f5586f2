"""What a suite file says and the trials that it becomes."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator

from harness.errors import UserError
from harness.models.layer import ModelSpec
from harness.registry import Catalogue, PluginKey, Registry, find_plugins
from harness.runtime.run_config import CHECKPOINT, MethodSpec, Timing, TrafficMode, TrainSpec, TuningRun
from harness.spec import DatasetSpec, PartitionSpec, PluginSource, Spec, of_presets
from harness.suite.document import SuiteSource, gather
from harness.suite.sections import Claim, NetworkSpec, TuningSpec

MOST_TRIALS = 100_000  # of a suite
PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # one path component on any file system, never hidden

LATER: Mapping[str, Any] = {  # keys of a trial that came later, and their defaults
    "timing": "plain",
    "traffic": "count",
    "repeat": 0,
    "data": None,
    "dataset.options.split": "public",
    "dataset.options.train": 0.6,
    "model.heads": 4,
    "model.order": 2,
    "train.pos_weight": 1.0,
    "train.sampled_eval": False,
    "train.final_eval": True,
    "train.cores": None,
    "train.products": "auto",
    "train.message_precision": "same",  # of before `codec`
    "train.cuda_graphs": False,
    "train.schedule": "constant",
    "train.optimizer_options": {},
    "train.schedule_options": {},
    "train.lr_warmup": 0,
    "train.clip": None,
    "train.seconds": None,
    "train.checkpoint": CHECKPOINT,
    "tuning": None,
    "shared": {},
    "model.options": {},
    "partition.options": {},
    "partition.order": "none",
}

FEW = 3  # numbers of a method that its trials' labels always name


def _network(value: Any) -> Any:
    """Turn `none` and a bare rate into what NetworkSpec takes."""
    if value in ("none", None):
        return None
    return {"rate": value} if isinstance(value, str) else value


IN_LABEL = {"name", "layers", "linear_layers", "hidden", "heads", "order"}  # of a model, see `ModelSpec.label`


class TrialConfig(Spec):
    """Everything that decides a trial's metrics; options are complete, defaults filled in.

    `partition.file` may be absolute (where the file was found); only its name is part of the identity, so
    that a suite keeps its results when it is moved. Nor are `plugin` and `plugins`: a method keeps its
    results when its code changes, until they are asked for anew.
    """

    dataset: DatasetSpec
    model: ModelSpec
    train: TrainSpec
    partition: PartitionSpec
    method: MethodSpec
    plugin: PluginSource | None = Field(None, description="the method's code, if it is not the tool's own")
    plugins: dict[str, PluginSource] = Field(
        default_factory=dict,
        description="the code of what else is not the tool's own, by kind: model, partitioner, ...",
    )
    network: Annotated[NetworkSpec | None, BeforeValidator(_network)] = None
    timing: Timing = "plain"
    traffic: TrafficMode = "count"
    seed: int = Field(ge=0)
    repeat: int = Field(0, ge=0, description="which run of the same trial; what is drawn does not depend on it")
    tuning: TuningRun | None = Field(None, description="of a trial of `harness tune`")
    data: str | None = Field(
        None, description="fingerprints of data set and partition, where another trial is like it on other data"
    )
    device: Literal["cpu", "cuda"]
    shared: dict[str, Any] = Field(
        default_factory=dict,
        description="`train.KEY` and `model.KEY` that the method has its own values of: what the suite's others have",
    )
    varied: tuple[str, ...] = Field(
        (), exclude=True, description="keys of train that the suite has several values of; for labels only"
    )

    @field_validator("shared")
    @classmethod
    def _shared_are_keys(cls, shared: dict[str, Any]) -> dict[str, Any]:
        known = {
            f"{name}.{key}" for name, spec in (("train", TrainSpec), ("model", ModelSpec)) for key in spec.model_fields
        }
        if unknown := sorted(shared.keys() - known):
            raise ValueError(f"{unknown[0]!r} is no key of model or train")
        return shared

    @property
    def sources(self) -> dict[str, PluginSource]:
        """Where the code is, by kind, of what is not the tool's own."""
        return dict(self.plugins) | ({} if self.plugin is None else {"method": self.plugin})

    @property
    def workload(self) -> tuple[ModelSpec, TrainSpec]:
        """Model and training as all methods of the suite have them, but for what they set themselves."""
        usual: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
        for section, key, value in self._shared():
            usual[section][key] = value
        return self.model.model_copy(update=usual["model"]), self.train.model_copy(update=usual["train"])

    def _shared(self) -> list[tuple[str, str, Any]]:
        return [(*key.split(".", 1), value) for key, value in self.shared.items()]

    @property
    def of_any_data(self) -> TrialConfig:
        """The trial as its suite has it."""
        return self if self.data is None else self.model_copy(update={"data": None})

    @property
    def seedless(self) -> str:
        """What its id would be with seed 0: the same of all seeds and repeats, on any data."""
        return self.model_copy(update={"seed": 0, "repeat": 0, "data": None}).id

    @property
    def id(self) -> str:
        """First 12 hex digits of the SHA-256 of the configuration as canonical JSON.

        Keys that came later are left out at their default and renamed ones have their first name, so that
        trials keep their ids.
        """
        config = self.model_dump(mode="json", exclude={"plugin", "plugins"})
        config["network"] = config["network"] or "none"
        config["train"]["checkpoint"] = CHECKPOINT  # it changes no bit
        if self.partition.parts == 1 or self.partition.method in ("random", "chunk", "file"):
            config["partition"]["objective"] = "volume"  # not read: the default when these trials got their ids
        for key, default in LATER.items():
            *above, last = key.split(".")
            section = functools.reduce(operator.getitem, above, config)
            if last in section and section[last] == default:
                del section[last]
        if (new := "transform_before_exchange") in (options := config["method"]["options"]):
            options["narrow"] = options.pop(new)  # as it was called when these trials got their ids
        if self.partition.file is not None:
            config["partition"]["file"] = self.partition.file.name
        text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """One line for people, e.g. "digits sage-2x64 bns-gcn(rate=0.5) P=2 seed=0".

        Names what differs from the defaults of the data set, the partitioner and the method, the method's
        numbers (rates, fan-outs, sizes) too, as long as it has few, of training what varies in the suite, and what the
        method sets itself.
        """
        from harness.data.registry import dataset_info
        from harness.runtime.method import METHODS

        defaults: dict[str, Any] = {}
        with suppress(UserError):  # a data set that is not known here
            defaults = {key: option.default for key, option in dataset_info(self.dataset).options.items()}
        dataset = _call(self.dataset.name, self.dataset.options, defaults)
        defaults = {}
        if (found := METHODS.loaded(self.method.name, self.plugin)) is not None:
            defaults = found.Options.option_defaults() | of_presets(found.Options.presets, self.method.options)
            numbers = [key for key in found.Options.option_numbers() if key in self.method.options]
            if len(numbers) <= FEW:
                defaults = {key: value for key, value in defaults.items() if key not in numbers}
        method = _call(self.method.name, self.method.options, defaults)
        partition = self.partition.model_dump(mode="json", exclude_defaults=True, exclude={"parts"})
        if self.partition.file is not None:
            partition["file"] = self.partition.file.name
        how = partition.pop("method", "")
        how = f" {_call(how or 'metis', partition, {})}" if how or partition else ""
        network = "" if self.network is None else f" {self.network.label}"
        train = "".join(f" {key}={_short(getattr(self.train, key))}" for key in self.varied)
        model = self.model.label
        plain = self.model.model_copy(update={"options": {}})  # a model's own label may say its options
        said = IN_LABEL | ({"options"} if plain.label != model else set())
        other = [(where, key) for where, key, _ in self._shared() if where != "model" or key not in said]
        own = "".join(f" {key}={_short(getattr(getattr(self, where), key))}" for where, key in other)
        run = f" study={self.tuning.study}" if self.tuning else ""
        run += (f" data={self.data[:8]}" if self.data else "") + (f" repeat={self.repeat}" if self.repeat else "")
        parts = f"P={self.partition.parts}{how}"
        return f"{dataset} {model} {method} {parts}{network}{train}{own}{run} seed={self.seed}"


def named_in(section: str) -> list[tuple[Registry[Any], str, str]]:
    """Return what model, partition or train names: registry, key of the name, key of its options."""
    if section == "model":
        from harness.models.layer import MODELS

        return [(MODELS, "name", "options")]
    if section == "partition":
        from harness.data.partition import PARTITIONERS

        return [(PARTITIONERS, "method", "options")]
    from harness.runtime.optimizers import OPTIMIZERS, SCHEDULES

    return [(OPTIMIZERS, "optimizer", "optimizer_options"), (SCHEDULES, "schedule", "schedule_options")]


def _call(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Write `name(key=value,...)` with the options that differ from their default."""
    said = [f"{key}={_short(value)}" for key, value in options.items() if key not in defaults or defaults[key] != value]
    return f"{name}({','.join(said)})" if said else name


def _short(value: Any) -> str:
    """Write a value as YAML would, floats without a superfluous `.0`."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))


def _entry(entry: Any) -> Any:
    """Turn `name` or `{name: {options}}` into the fields of a DatasetSpec or MethodSpec."""
    if isinstance(entry, str):
        return {"name": entry}
    if not isinstance(entry, dict) or (set(entry) == {"name", "options"}):
        return entry
    if len(entry) != 1:
        raise ValueError("write one name per entry: `- name` or `- name: {option: value}`")
    [(name, options)] = entry.items()
    if options is not None and not isinstance(options, dict):
        raise ValueError(f"write the options of {name} as `{name}: {{option: value}}`")
    return {"name": name, "options": options or {}}


def cuda_for_gpu(device: Any) -> Any:
    """Take a device called gpu for cuda."""
    return "cuda" if device == "gpu" else device


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str | dict) else value


def axis(value: Any, list_valued: bool) -> Sequence[Any]:
    """Return the alternatives that a written value stands for: a list stands for its items.

    Of an option that takes a list only a list that holds lists does.
    """
    if not isinstance(value, list):
        return [value]
    if list_valued and not any(isinstance(item, list) for item in value):
        return [value]
    return value


def grid(options: Mapping[str, Any], list_valued: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield every combination of options, the first-named (alphabetically) varying slowest.

    A list stands for its items; for the options named in `list_valued` it is one value, and a list that
    holds lists stands for its items.
    """
    keys = sorted(options)  # the order of keys in the file must not change the order of trials
    axes = [axis(options[key], key in list_valued) for key in keys]
    for values in itertools.product(*axes):
        yield dict(zip(keys, values, strict=True))


def grid_size(options: Mapping[str, Any], list_valued: Collection[str] = ()) -> int:
    """Return how many combinations of options there are; see `grid`."""
    return math.prod(len(axis(value, key in list_valued)) for key, value in options.items())


def variants_size(written: Any) -> int:
    """Return how many variants a section stands for: a grid, several of them, or what is no grid."""
    entries = written if isinstance(written, list | tuple) else [written]
    return sum(grid_size(entry) if isinstance(entry, dict) else 1 for entry in entries)


def too_many(factors: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the key that most is listed under, and what to say, if the factors make too many trials; else None."""
    total = math.prod(factors.values())
    if total <= MOST_TRIALS:
        return None
    said = " x ".join(f"{count:,} {key}" for key, count in factors.items() if count > 1)
    return max(factors, key=factors.__getitem__), f"{total:,} trials ({said}), a suite has at most {MOST_TRIALS:,}"


def _variants(value: Any) -> Any:
    """Expand each mapping whose values are lists into all its combinations, in the order written.

    ValueError if there are more than a suite may have trials.
    """
    if (count := variants_size(value)) > MOST_TRIALS:
        raise ValueError(f"{count:,} variants, a suite has at most {MOST_TRIALS:,} trials: list fewer values")
    variants: list[Any] = []
    for written in value if isinstance(value, list | tuple) else [value]:
        variants += grid(written) if isinstance(written, dict) else [written]
    return variants


class Timeouts(Spec):
    """Limits in seconds of wall time."""

    trial_s: float = Field(3600, gt=0, description="a whole trial, from start to its last rank's end")
    collective_s: float = Field(300, gt=0, description="one exchange between ranks")
    progress_s: float = Field(
        1800, gt=0, description="no step and no exchange of any rank, once training has begun: the trial hangs"
    )


class DatasetSettings(Spec):
    """Keys of `model` and `train` that a data set has another value of."""

    model: dict[str, Any] = Field(default_factory=dict, description="keys of `model`")
    train: dict[str, Any] = Field(default_factory=dict, description="keys of `train`")


class OwnModel(Spec):
    """Keys of `model` that a method may set itself: those that regularise, not those that make another model."""

    norm: Literal["layer", "none"] | None = Field(None, description="as in `model`")
    dropout: float | None = Field(None, ge=0, lt=1, description="as in `model`")

    def written(self) -> dict[str, Any]:
        """Return the keys that are given."""
        return self.model_dump(exclude_unset=True)


class OwnSettings(Spec):
    """Keys of `model` and `train`, and options of its own, that a method has another value of."""

    options: dict[str, Any] = Field(default_factory=dict, description="its own options, over those of `methods`")

    model: OwnModel = Field(OwnModel(), description="`norm`, `dropout`")
    train: dict[str, Any] = Field(default_factory=dict, description="keys of `train`")


class MethodSettings(OwnSettings):
    """What a method has another value of, on all data sets or on one."""

    per_dataset: dict[str, OwnSettings] = Field(
        default_factory=dict, description="the same on a data set, by its name, laid over these"
    )


class Suite(Spec):
    """A grid of trials. `datasets` and `methods` hold options as written: a list may stand for a grid."""

    name: str = Field(pattern=PLAIN_NAME, max_length=100, description="names the results' directory")
    description: str = Field("", description="what the suite shows")
    datasets: Annotated[tuple[Annotated[DatasetSpec, BeforeValidator(_entry)], ...], BeforeValidator(_listed)] = Field(
        min_length=1, description="names of `harness list datasets`, with options if wanted"
    )
    model: Annotated[tuple[ModelSpec, ...], BeforeValidator(_variants)] = Field(
        (ModelSpec.model_construct(),), min_length=1, description="the architecture, the same for every method"
    )
    train: Annotated[tuple[TrainSpec, ...], BeforeValidator(_variants)] = Field(
        (TrainSpec(),), min_length=1, description="the training, the same for every method"
    )
    partition: Annotated[tuple[PartitionSpec, ...], BeforeValidator(_variants)] = Field(
        (PartitionSpec(),), min_length=1, description="how the nodes are given to ranks, and how many there are"
    )
    methods: Annotated[tuple[Annotated[MethodSpec, BeforeValidator(_entry)], ...], BeforeValidator(_listed)] = Field(
        min_length=1, description="names of `harness list methods`, with options if wanted"
    )
    plugins: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="methods that are not installed: file.py, relative to the suite, or package.module"
    )
    network: Annotated[
        tuple[Annotated[NetworkSpec | None, BeforeValidator(_network)], ...], BeforeValidator(_variants)
    ] = Field((None,), min_length=1, description="shaped networks between ranks; none: the loopback")
    shaping: Literal["needed", "optional"] = Field(
        "needed",
        description="where this machine cannot shape a network: skip its trials, or run them over the loopback, from "
        "which the report projects",
    )
    timing: Timing = Field("plain", description="how epochs are timed: with barriers, without, only whole, or not")
    traffic: TrafficMode = Field("count", description="verify: compare counted bytes with the interface's")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0,), min_length=1, description="repetitions: each draws weights and samples anew"
    )
    first_look: int | None = Field(
        None, ge=1, description="of `run --until decided`: how many of the seeds were compared first; with each of the "
        "others all were compared again"
    )  # fmt: skip
    first_seeds: int | None = Field(
        None, ge=1, description="of `run --twin`: how many of the seeds every trial has; what reaches the target has "
        "the others, too"
    )  # fmt: skip
    repeat: int = Field(
        1, ge=1, description="runs of each trial with the same seed: times scatter, scores are the same bits"
    )
    interleave: bool = Field(
        True,
        description="methods in turns: all trials with one seed, then all with the next in the reverse order, and "
        "so on for repeats; false: seeds and repeats of a trial one after the other",
    )
    references: bool = Field(
        False, description="run exact training of each method's settings and batch, too: its convergence is held to it"
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], BeforeValidator(cuda_for_gpu)] = Field(
        "auto", description="auto: cuda where torch sees a GPU; gpu: cuda"
    )
    timeouts: Timeouts = Field(Timeouts(), description="limits of wall time")
    retries: int = Field(
        0, ge=0, description="times that a trial of which a rank or a node was lost is started again, from its last "
        "checkpoint if there is one"
    )  # fmt: skip
    per_dataset: dict[str, DatasetSettings] = Field(
        default_factory=dict, description="keys of model and train that differ on a data set, by its name"
    )
    per_method: dict[str, MethodSettings] = Field(
        default_factory=dict,
        description="keys of train, dropout and norm of model, and options that a method sets itself, by its name",
    )
    exclude: tuple[dict[str, Any], ...] = Field(
        (),
        max_length=1000,
        description="trials that are left out: those that match all keys of an entry, keys as for --only",
    )
    tuning: TuningSpec | None = Field(None, description="how `harness tune` searches each method's settings")
    claims: tuple[Claim, ...] = Field(
        (), max_length=1000, description="what the results should show; no part of a trial"
    )

    _source: SuiteSource = PrivateAttr(default_factory=SuiteSource)
    _catalogue: Catalogue | None = PrivateAttr(None)

    @property
    def source(self) -> SuiteSource:
        """Where each key was written, for messages."""
        return self._source

    @property
    def directory(self) -> Path | None:
        """Directory of the suite's file; None for a suite made in Python."""
        return self._source.file.resolve().parent if self._source.file else None

    def catalogue(self) -> Catalogue:
        """Return what the suite can name; the first call imports its plugins.

        Raises:
            UserError: a line for each plugin that is absent, does not import, brings nothing, or a name twice.
        """
        if self._catalogue is None:
            sources: dict[PluginKey, PluginSource] = {}
            errors = []
            for i, entry in enumerate(self.plugins):
                try:
                    sources = find_plugins([entry], self.directory, sources)
                except UserError as error:
                    errors.append(self.source.error(("plugins", i), str(error)))
            if errors:
                raise gather(errors)
            self._catalogue = Catalogue(sources)
        return self._catalogue
