"""From a suite to its trials: grids, exclusions, and the complete options of each."""

from __future__ import annotations

import itertools
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UserError, nearest
from harness.gpus import gpu_is_usable
from harness.models.layer import MODELS, OWN_KEYS, ModelSpec
from harness.registry import Catalogue, Found
from harness.runtime.run_config import MethodSpec, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec, PluginSource
from harness.suite.document import KeyPath, explain, gather
from harness.suite.schema import (
    DatasetSettings,
    OwnSettings,
    Suite,
    TrialConfig,
    axis,
    grid,
    grid_size,
    named_in,
    too_many,
)
from harness.suite.select import check_keys, claim_errors, fits, rule
from harness.suite.suite_file import mended

if TYPE_CHECKING:
    from harness.runtime.method import Method

S = TypeVar("S", ModelSpec, TrainSpec)
N = TypeVar("N", ModelSpec, TrainSpec, PartitionSpec)
Settings = tuple[list[ModelSpec], list[TrainSpec]]
"""Models and trainings."""
EVERYBODYS = frozenset(("threads", "cores", "inductive", "target"))
"""Keys of `train` that no method sets itself: the machine's share, the graph and the goal are of the comparison."""
Usual = tuple[DatasetSpec, ModelSpec, TrainSpec]
"""A data set, and a model and the training it gets on it."""
Own = tuple[ModelSpec, TrainSpec, dict[str, Any]]
"""Model and training of a method with settings of its own, and `TrialConfig.shared`."""


def takes_list(annotation: Any) -> bool:
    """Return whether a field's type admits a list, e.g. `int | list[int]`."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return any(takes_list(member) for member in typing.get_args(annotation))
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, (list, tuple, set, frozenset))


def expand(
    suite: Suite,
    *,
    device: str | None = None,
    data_dir: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[TrialConfig]:
    """Return the trials of a suite, each once, in an order that only the suite's own lists decide.

    Repeats and seeds vary slowest, then data sets, models, training, partitions, networks and methods; see `in_turns`.
    Needs no data to be present.

    Args:
        suite: from `load_suite`.
        device: "cpu", "cuda" or "auto" in place of the suite's.
        data_dir: directory of the user's own data sets, and of partition files that are not next to the suite;
            default $HARNESS_DATA.
        report: receives a line for each entry of `exclude` that no trial matches.

    Raises:
        UserError: a line for each unknown data set, method or option, or bad value of an option.
    """
    checked = _Checked(suite, suite.catalogue(), data_dir)
    checked.require_size()
    datasets, methods, partitions = list(checked.datasets()), list(checked.methods()), list(checked.partitions())
    own = checked.own_settings(datasets)
    excludes = checked.excludes({key for method, _ in methods for key in method.options})
    # A method's options vary with the data set where `per_method` says so.
    options = {
        (i, number): checked.with_own_options(method, found, dataset)
        for i, (method, found) in enumerate(methods)
        for number, (dataset, _, _) in enumerate(datasets)
    }
    if checked.errors:
        raise gather(checked.errors)
    settings = {
        (i, number): _trained(methods[i][1].value, made.options, datasets[number], own.get((made.name, number)))
        for (i, number), made in options.items()
    }
    trials: dict[str, TrialConfig] = {}
    idle = {*range(len(excludes))}
    on_device, first = resolve_device(device or suite.device), suite.train[0]
    varied = tuple(
        key for key in TrainSpec.model_fields if any(getattr(t, key) != getattr(first, key) for t in suite.train)
    )
    for (number, usual), partition, network, (i, (_, found)), seed in itertools.product(
        enumerate(datasets), partitions, suite.network, enumerate(methods), suite.seeds
    ):
        model, train, shared = settings[i, number]
        partition = checked.within_memory(partition, usual[0])
        trial = TrialConfig(
            dataset=usual[0], model=model, train=train, partition=partition, method=options[i, number], seed=seed,
            network=network if network and partition.parts > network.ranks_per_host else None, shared=shared,
            plugin=found.source, plugins=checked.sources_of(model, train, partition),
            timing=suite.timing, traffic=suite.traffic, device=on_device, varied=varied,
        )  # fmt: skip
        if matched := {n for n, keys in enumerate(excludes) if fits(trial, keys)}:
            idle -= matched
            continue
        checked.fit_nodes(trial, found.value, checked.nodes[number])
        if trials.setdefault(trial.id, trial) != trial:
            name = trial.partition.file.name if trial.partition.file else ""
            raise suite.source.error(("partition", "file"), f"two partition files are named '{name}'", "rename one")
    if checked.errors:
        raise gather(checked.errors)
    if suite.references:
        trials |= {exact.id: exact for each in list(trials.values()) if (exact := _reference(suite, each))}
    _check_together(suite, list(trials.values()))
    for i in sorted(idle):
        report(str(suite.source.error(("exclude", i), "excludes no trial of the suite")))
    runs = [trial.model_copy(update={"repeat": k}) for trial in trials.values() for k in range(suite.repeat)]
    return in_turns(runs) if suite.interleave else runs


def _trained(method: type[Method[Any]], options: Mapping[str, Any], usual: Usual, own: Own | None) -> Own:
    """Return the settings that a method trains with, and its own model, if it has one, in place of the suite's."""
    model, train, shared = own or (*usual[1:], {})
    if (trained := method.model_of(method.Options(**options), model)) is not None:
        model, shared = trained, shared | _differing("model", usual[1], trained)
    return model, train, shared


def _reference(suite: Suite, trial: TrialConfig) -> TrialConfig | None:
    """Return exact training in one process with a trial's settings and batch: what its convergence is held against.

    None where the method's options do not say how many targets a step has.
    """
    from harness.runtime.method import METHODS

    family = suite.catalogue().find(METHODS, trial.method.name).value.family
    size, options = trial.method.options.get("batch_size"), dict[str, Any]()
    if family == "full-graph" or size == 0:
        family = "full-graph"
    elif isinstance(size, int):
        options = {"fanouts": -1, "batch_size": size * trial.partition.parts}
    else:
        return None
    baselines = ((name, METHODS.load(name)) for name in METHODS.names())
    name, found = next((n, each) for n, each in baselines if each.baseline is not None and each.family == family)
    method = MethodSpec(name=name, options=found.Options(**options).model_dump(mode="json"))
    plugins = {kind: source for kind, source in trial.plugins.items() if kind != "partitioner"}
    alone = {"partition": PartitionSpec(parts=1), "network": None, "plugin": None, "plugins": plugins, "shared": {}}
    return trial.model_copy(update={"method": method, **alone})


def _check_together(suite: Suite, trials: Sequence[TrialConfig]) -> None:
    """Raise a UserError where claims, timing or CUDA graphs of a suite do not fit its trials."""
    if errors := [*claim_errors(suite, trials), *_unfitting(suite, trials)]:
        raise gather(errors)
    if suite.timing == "off" and any(trial.train.seconds is not None for trial in trials):
        raise suite.source.error(
            ("train", "seconds"), "epochs are not timed with `timing: off`", "remove it, or time: `timing: wall`"
        )
    for trial in (trial for trial in trials if trial.train.cuda_graphs):
        from harness.runtime.method import METHODS
        from harness.runtime.step import why_not_captured

        name = trial.method.name
        found = why_not_captured(
            device=trial.device,
            timing=trial.timing,
            parts=trial.partition.parts,
            method=name,
            recurring=suite.catalogue().find(METHODS, name).value.recurring,
        )
        if found is not None:
            raise suite.source.error(("train", "cuda_graphs"), *found)


def _unfitting(suite: Suite, trials: Sequence[TrialConfig]) -> Iterator[UserError]:
    """Yield an error for each method whose options do not fit its model, such as a fan-out more than it has layers."""
    from harness.models.architecture import Architecture
    from harness.runtime.cost_models import MemoryCase, PartSize
    from harness.runtime.method import METHODS

    alike = dict[str, TrialConfig]()
    for trial in trials:  # numbers fit any model: lengths of lists, flags and words may not
        options = {k: len(v) if isinstance(v, list) else v for k, v in trial.method.options.items()
                   if v is True or not isinstance(v, int | float)}  # fmt: skip
        if any(value is True or isinstance(value, int) for value in options.values()):
            alike.setdefault(f"{trial.method.name} {options} {trial.model.model_dump_json()}", trial)
    part = PartSize(inner=100, boundary=0, edges=1000, cut=0)
    for trial in alike.values():
        name, options = trial.method.name, trial.method.options
        found = METHODS.load(name, trial.plugin)
        try:
            model = Architecture(trial.model, 8, 2, source=trial.plugins.get("model"))
            found.memory(found.Options(**options), MemoryCase(part, None, 50, 100, 1000, model))
        except UserError as error:
            key = error.key or ""
            yield suite.source.error(_written_at(suite, name, key, options.get(key)), error.message, error.fix)
        except Exception:  # a mistake in a plugin's own code: the log of its trial shows it
            continue


def _written_at(suite: Suite, method: str, key: str, value: Any) -> KeyPath:
    """Return where a suite gives an option of a method this value."""
    entries = [(i, each.options.get(key)) for i, each in enumerate(suite.methods) if each.name == method]
    number = next((i for i, written in entries if value in axis(written, isinstance(value, list))), None)
    return ("methods", number, method, key) if number is not None else ("per_method", method, "options", key)


def in_turns(trials: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Return trials in rounds, one a repeat and seed, every second one in the reverse order: A B C, C B A, A B C.

    After an even number of rounds all have the same mean position, so that a machine that becomes slower at an even
    pace favours none; rotating (A B C, B C A, C A B) needs as many rounds as there are trials for that.
    """
    rounds: dict[tuple[int, int], list[TrialConfig]] = {}
    for trial in sorted(trials, key=lambda trial: trial.repeat):
        rounds.setdefault((trial.repeat, trial.seed), []).append(trial)
    return [trial for number, each in enumerate(rounds.values()) for trial in each[:: -1 if number % 2 else 1]]


def resolve_device(device: str) -> Literal["cpu", "cuda"]:
    """Return the device that "auto" stands for on this machine: cuda where torch sees a GPU."""
    if device == "auto":
        return "cuda" if gpu_is_usable() else "cpu"
    if device in ("cpu", "cuda"):
        return "cpu" if device == "cpu" else "cuda"
    raise UserError(f"bad value '{device}', allowed: auto, cpu, cuda", key="device")


class _Checked:
    """The sections of a suite, complete and checked by what they name; `errors`: all that is wrong so far."""

    def __init__(self, suite: Suite, catalogue: Catalogue, data_dir: Path | None) -> None:
        self.suite, self.catalogue, self.data_dir = suite, catalogue, data_dir
        self.errors: list[UserError] = []
        self.nodes: list[int] = []  # of each data set, model and training

    def refuse(self, path: KeyPath, message: str, fix: str | None = None) -> None:
        """Note a mistake that is written at `path`."""
        self.errors.append(self.suite.source.error(path, message, fix))

    def _pass_on(self, path: KeyPath, error: UserError) -> None:
        """Note what is wrong with something that is named at `path`, and the file in which it is, if that is known."""
        line = f":{error.line}" if error.line else ""
        self.refuse(path, f"{error.file}{line}: {error.message}" if error.file else error.message, error.fix)

    def _explain(self, error: ValidationError, path: KeyPath, model: type[BaseModel], depth: int | None = None) -> None:
        """Note what pydantic found in a section of keys or options that is written at `path`."""

        def at(option: KeyPath, message: str, fix: str | None) -> UserError:
            return self.suite.source.error((*path, *option), message, fix)

        def mend(option: KeyPath, found: ErrorDetails, keys: Mapping[str, Any]) -> str | None:
            whole = (*path, *option)
            return mended(whole, found, keys, self.suite.source.override_at(whole) is not None)

        self.errors.append(explain(error, at, lambda _: model.model_fields, mend, depth))

    def require_size(self) -> None:
        """Raise a UserError if the suite has too many trials, exclusions not counted."""
        from harness.runtime.method import METHODS

        suite, methods = self.suite, 0
        for entry in suite.methods:
            with suppress(UserError):  # `methods` reports an unknown one
                found = self.catalogue.find(METHODS, entry.name)
                methods += grid_size(entry.options, _listed(found.value.Options))
        factors = {"datasets": sum(grid_size(entry.options) for entry in suite.datasets)}
        factors |= {key: len(getattr(suite, key)) for key in ("model", "train", "partition", "network", "seeds")}
        if (many := too_many(factors | {"methods": methods, "repeat": suite.repeat})) is not None:
            raise suite.source.error((many[0],), many[1], "list fewer values, or write several suites")

    def datasets(self) -> Iterator[Usual]:
        """Yield each data set with complete options, and with each model the training it gets on it."""
        from harness.data.registry import dataset_info

        suite = self.suite
        usual = self._settings(suite.model, suite.train, suite.source.variant)
        variants = enumerate(suite.model)
        written = {key: suite.source.variant("model", i) for i, spec in variants for key in spec.model_fields_set}
        self._refuse_unread(suite.model, written)
        own = {name: self._settings_on(name, settings) for name, settings in suite.per_dataset.items()}
        for i, entry in enumerate(suite.datasets):
            models, trainings = own.get(entry.name, usual)
            for options in grid(entry.options):
                try:
                    info = dataset_info(DatasetSpec(name=entry.name, options=options), self.data_dir)
                    for key, value in options.items():
                        if isinstance(value, float) and not math.isfinite(value):
                            raise UserError(f"bad value {value}: must be finite", key=key)
                except UserError as error:
                    words = (error.key or "").replace(":", " ").split()
                    blamed = (key for key in options if words[-1:] == [key] or f"'{key}'" in error.message)
                    option: KeyPath = next(((entry.name, key) for key in blamed), ())
                    self._pass_on(("datasets", i, *option), error)
                    continue
                defaults = {key: option.default for key, option in info.options.items()}
                # 1 and 1.0 are the same trial where the option is a fraction.
                complete = {
                    key: float(value) if type(value) is int and isinstance(defaults[key], float) else value
                    for key, value in (defaults | options).items()
                }
                spec = DatasetSpec(name=entry.name, options=complete)
                if not info.multilabel:
                    own_weight = "pos_weight" in suite.per_dataset.get(entry.name, DatasetSettings()).train
                    path = ("per_dataset", entry.name, "train") if own_weight else ("train",)
                    self._need_label_sets(entry.name, trainings, path)
                if not info.validates:
                    self._need_validation(entry.name, trainings)
                decided = {"inductive": info.inductive}
                resolved = [t.model_copy(update=decided) if t.inductive is None else t for t in trainings]
                self.nodes += [info.nodes] * len(models) * len(resolved)
                yield from ((spec, model, train) for model in models for train in resolved)

    def fit_nodes(self, trial: TrialConfig, method: type[Method[Any]], nodes: int) -> None:
        """Refuse more parts, or more of what the method counts, than the data set has nodes; defaults always fit."""
        parts, options, fields = trial.partition.parts, trial.method.options, method.Options.model_fields
        over: list[tuple[KeyPath, int]] = [(("partition", "parts"), parts)] if parts > nodes else []
        over += [
            (_written_at(self.suite, trial.method.name, key, options[key]), options[key])
            for key in method.within_nodes
            if nodes < options[key] != fields[key].default
        ]
        for path, value in over:
            self.refuse(path, f"bad value {value}: {trial.dataset.name} has {nodes:,} nodes", f"at most {nodes}")

    def _need_validation(self, name: str, trainings: Sequence[TrainSpec]) -> None:
        for key in ("target", "patience"):
            if value := next((own for train in trainings if (own := getattr(train, key)) is not None), None):
                message = f"bad value {value:g}: '{name}' has no validation nodes, and so no score"
                self.refuse(("train", key), message, "remove it, or give the set validation nodes")

    def _need_label_sets(self, name: str, trainings: Sequence[TrainSpec], path: KeyPath) -> None:
        # Where nodes have one label each the loss has no positive term that a weight could act on.
        weight = next((train.pos_weight for train in trainings if train.pos_weight != 1), None)
        if weight is not None:
            message = f"bad value {weight:g}: the nodes of '{name}' have one label each, its loss no positive term"
            self.refuse((*path, "pos_weight"), message, "remove it, or give it to the multi-label sets by per_dataset")

    def own_settings(self, datasets: Sequence[Usual]) -> dict[tuple[str, int], Own]:
        """Return the settings that methods have of their own, by method and number of data set, model and training.

        With `train.KEY` and `model.KEY` that differ, and the values that the others have.
        """
        found: dict[tuple[str, int], Own] = {}
        names = {entry.name for entry in self.suite.methods}
        for name, settings in self.suite.per_method.items():
            path = ("per_method", name)
            if name not in names:
                self.refuse(path, "no method of the suite", nearest(name, names))
                continue
            for other in settings.per_dataset.keys() - {dataset.name for dataset, _, _ in datasets}:
                known = {entry.name for entry in self.suite.datasets}
                self.refuse((*path, "per_dataset", other), "no data set of the suite", nearest(other, known))
            for number, usual in enumerate(datasets):
                found[name, number] = self._own(usual, self._layers(name, usual[0].name))
        return found

    def _layers(self, method: str, dataset: str) -> list[tuple[KeyPath, OwnSettings]]:
        """Return where settings of a method's own are written for a data set, and the settings, the strongest last."""
        settings = self.suite.per_method.get(method)
        if settings is None:
            return []
        path, on_it = ("per_method", method), settings.per_dataset.get(dataset)
        return [(path, settings), *([((*path, "per_dataset", dataset), on_it)] if on_it else [])]

    def with_own_options(self, method: MethodSpec, found: Found[Any], dataset: DatasetSpec) -> MethodSpec:
        """Return a method with the options that it sets itself on a data set, checked."""
        model, options = found.value.Options, method.options
        for path, own in self._layers(method.name, dataset.name):
            if not own.options:
                continue
            try:
                options = model.model_validate(options | own.options).model_dump(mode="json")
            except ValidationError as error:
                self._explain(error, (*path, "options"), model, depth=1)
        return method.model_copy(update={"options": options})

    def _own(self, usual: Usual, layers: Sequence[tuple[KeyPath, OwnSettings]]) -> Own:
        from harness.data.registry import dataset_info

        dataset, model, train = usual
        for path, settings in layers:
            own_model = settings.model.written()
            self._check_own_keys((*path, "model"), own_model, self.suite.model)
            self._check_own_keys((*path, "train"), settings.train, self.suite.train)
            model = self._named(self._laid_over(model, own_model, (*path, "model")), "model", path)
            train = self._laid_over(train, settings.train, (*path, "train"))
            train = self._named(train, "train", (*path, "train"))
            if train.inductive is None:
                train = train.model_copy(update={"inductive": usual[2].inductive})
            if not dataset_info(dataset, self.data_dir).multilabel and "pos_weight" in settings.train:
                self._need_label_sets(dataset.name, [train], (*path, "train"))
        return model, train, _differing("model", usual[1], model) | _differing("train", usual[2], train)

    def _check_own_keys(self, path: KeyPath, own: Mapping[str, Any], varying: Sequence[BaseModel]) -> None:
        """Refuse keys of a method's own section that the comparison fixes, or that the suite varies."""
        section = path[-1]
        for key in own:
            if key in EVERYBODYS:
                message = "the same for every method: with another value times or scores are of something else"
                self.refuse((*path, key), message, f"set it in `{section}`")
            if len({repr(getattr(spec, key, None)) for spec in varying}) > 1:
                message = f"the suite has several values of {section}.{key}: this one would run for each of them"
                self.refuse((*path, key), message, f"leave one value in {section}.{key}")

    def _settings(
        self, models: Sequence[ModelSpec], trainings: Sequence[TrainSpec], where: Callable[[str, int], KeyPath]
    ) -> Settings:
        """Return models and trainings, checked; `where`: they are written, by section and number."""
        return (
            [self._named(model, "model", where("model", i)) for i, model in enumerate(models)],
            [self._named(train, "train", where("train", i)) for i, train in enumerate(trainings)],
        )

    def _refuse_unread(self, models: Sequence[ModelSpec], written: Mapping[str, KeyPath]) -> None:
        """Refuse the keys of models, with where they are `written`, that only other models' layers read."""
        with suppress(UserError):  # an unknown model: `_named` refuses it
            layers = {model.name: self.catalogue.find(MODELS, model.name).value for model in models}
            for key in sorted(OWN_KEYS & written.keys()):
                if not any(key in layer.reads for layer in layers.values()):
                    value, others = getattr(models[0], key), [(n, MODELS.loaded(n)) for n in MODELS.names()]
                    readers = ", ".join(name for name, layer in others if layer and key in layer.reads)
                    what = f"bad value {value}: {', '.join(layers)} has no {key}"
                    self.refuse((*written[key], key), what, f"remove it, or name a model that has: {readers}")

    def _settings_on(self, name: str, own: DatasetSettings) -> Settings:
        path, names = ("per_dataset", name), {entry.name for entry in self.suite.datasets}
        if name not in names:
            self.refuse(path, "no data set of the suite", nearest(name, names))
        models = [self._laid_over(model, own.model, (*path, "model")) for model in self.suite.model]
        self._refuse_unread(models, dict.fromkeys(own.model, (*path, "model")))
        trainings = [self._laid_over(train, own.train, (*path, "train")) for train in self.suite.train]
        return self._settings(models, trainings, lambda section, _: (*path, section))

    def _laid_over(self, spec: S, own: Mapping[str, Any], path: KeyPath) -> S:
        """Return a section with some of its keys replaced, checked; as it was if they are wrong."""
        usual = spec.model_dump()
        for _, name, options in named_in(str(path[-1])):
            if name in own and own[name] != usual[name]:
                usual.pop(options)  # they are another one's
        try:
            return type(spec).model_validate(usual | dict(own))
        except ValidationError as error:
            self._explain(error, path, type(spec))
            return spec

    def methods(self) -> Iterator[tuple[MethodSpec, Found[Any]]]:
        """Yield each method with complete, checked options, and its class with where its code is."""
        from harness.runtime.method import METHODS

        for i, entry in enumerate(self.suite.methods):
            path = ("methods", i, entry.name)
            try:
                found = self.catalogue.find(METHODS, entry.name)
            except UserError as error:
                self._pass_on((*path, error.key) if error.key else path[:2], error)
                continue
            model = found.value.Options
            for options in grid(entry.options, _listed(model)):
                try:
                    checked = model.model_validate(options)
                except ValidationError as error:
                    self._explain(error, path, model, depth=1)
                    continue
                yield MethodSpec(name=entry.name, options=checked.model_dump(mode="json")), found

    def _named(self, spec: N, section: str, path: KeyPath) -> N:
        """Return a section, written at `path`, with its options that differ from their defaults."""
        for registry, key, own in named_in(section):
            name = getattr(spec, key)
            try:
                found: Any = self.catalogue.find(registry, name).value
                options = found.Options.model_validate(getattr(spec, own))
                spec = spec.model_copy(update={own: options.model_dump(mode="json", exclude_defaults=True)})
                if isinstance(spec, ModelSpec):
                    found.check_spec(spec)
                    unread = OWN_KEYS - found.reads
                    spec = spec.model_copy(update={key: type(spec).model_fields[key].default for key in unread})
            except ValidationError as error:
                self._explain(error, (*path, key, name), found.Options, depth=1)
            except UserError as error:
                self._pass_on((*path, key), error)
            except ValueError as error:
                self.refuse(path, str(error))
        return spec

    def sources_of(self, model: ModelSpec, train: TrainSpec, partition: PartitionSpec) -> dict[str, PluginSource]:
        """Return where the code is, by kind, of everything that a trial names besides its method."""
        named = (("model", model), ("train", train), ("partition", partition))
        found = {
            registry.kind: self.catalogue.find(registry, getattr(spec, key)).source
            for section, spec in named
            for registry, key, _ in named_in(section)
        }
        return {kind: source for kind, source in found.items() if source is not None}

    def partitions(self) -> Iterator[PartitionSpec]:
        """Yield each partition without the keys that its method does not read, its file found where it is there."""
        from harness.data.partition import PARTITIONERS

        for i, written in enumerate(self.suite.partition):
            before = len(self.errors)
            spec = self._named(written, "partition", self.suite.source.variant("partition", i))
            if len(self.errors) > before:
                continue
            reads = self.catalogue.find(PARTITIONERS, spec.method).value.reads
            if "file" not in reads:
                # One part is the same whatever is minimised, and has the keys of its partners with more parts.
                asked = self.suite.partition[0] if spec.parts == 1 else spec
                read = asked if "objective" in reads else PartitionSpec()
                yield spec.model_copy(update={"file": None, "objective": read.objective})
            elif spec.file is not None:
                # Next to the suite, else in the data directory, else as written: it may be absent in a plan.
                directories = (self.suite.directory, self.data_dir or os.environ.get("HARNESS_DATA"))
                paths = (Path(directory, spec.file) for directory in directories if directory is not None)
                file = next((path.resolve() for path in paths if path.is_file()), spec.file)
                yield PartitionSpec(parts=spec.parts, method=spec.method, file=file, order=spec.order)
            else:
                message = "missing: method `file` reads the part of each node from a .npy file"
                self.refuse(("partition", "file"), message, "add `file: NAME.npy`")

    def within_memory(self, spec: PartitionSpec, dataset: DatasetSpec) -> PartitionSpec:
        """Return the partition of a data set by the partitioner that `partition.memory` has room for."""
        from harness.data.partition import within_memory
        from harness.data.registry import dataset_info

        if spec.memory is None:
            return spec
        info = dataset_info(dataset, self.data_dir)
        try:
            return within_memory(spec, info.nodes, info.edges)
        except UserError as error:
            where = ("partition", (error.key or "").rpartition(".")[2])
            raise self.suite.source.error(where, f"{dataset.name}: {error.message}", error.fix or "") from None

    def excludes(self, options: Collection[str]) -> list[dict[str, Sequence[Any]]]:
        """Return the exclusions, every value a list of alternatives, their keys checked.

        `options` are those of the suite's methods.
        """
        for i, written in enumerate(self.suite.exclude):
            try:
                check_keys(written, options)
            except UserError as error:
                self.refuse(("exclude", i, error.key or ""), error.message, error.fix)
            if not written:
                self.refuse(("exclude", i), "excludes everything", "name what to exclude")
        return [rule(written) for written in self.suite.exclude]


def _differing(section: str, usual: BaseModel, own: BaseModel) -> dict[str, Any]:
    """Return the keys of a section, as `section.key`, that have other values in `own`, with the usual ones."""
    values = usual.model_dump(mode="json")
    return {f"{section}.{key}": values[key] for key in values if getattr(usual, key) != getattr(own, key)}


def _listed(options: type[BaseModel]) -> set[str]:
    return {key for key, field in options.model_fields.items() if takes_list(field.annotation)}
