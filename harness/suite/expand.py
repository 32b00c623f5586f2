"""From a suite to its trials: grids, exclusions, and the choice of `--only`."""

from __future__ import annotations

import itertools
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from harness.data.catalog import DatasetInfo
from harness.errors import UserError, nearest
from harness.models.spec import ModelSpec
from harness.registry import PluginKey, find_plugins
from harness.runtime.spec import MethodSpec, TrainSpec
from harness.spec import RENAMED, DatasetSpec, PartitionSpec, PluginSource
from harness.suite.document import ErrorAt, KeyPath, explain, gather
from harness.suite.schema import DatasetSettings, Suite, TrialConfig, named_in
from harness.suite.select import check_keys, claim_errors, holds, matches, rule


def takes_list(annotation: Any) -> bool:
    """Return whether a field's type admits a list, e.g. `int | list[int]`."""
    if members := typing.get_args(annotation):
        origin = typing.get_origin(annotation)
        if origin in (typing.Union, types.UnionType, typing.Annotated):
            return any(takes_list(member) for member in members)
        annotation = origin
    return isinstance(annotation, type) and issubclass(annotation, _LISTS)


_LISTS = (list, tuple, set, frozenset)


def grid(options: Mapping[str, Any], list_valued: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield every combination of options, the first-named (alphabetically) varying slowest.

    A list stands for its items; for the options named in `list_valued` it is one value, and a list that
    holds lists stands for its items.
    """
    keys = sorted(options)  # the order of keys in the file must not change the order of trials
    axes = [_axis(options[key], key in list_valued) for key in keys]
    for values in itertools.product(*axes):
        yield dict(zip(keys, values, strict=True))


def _axis(value: Any, list_valued: bool) -> list[Any]:
    """Return the alternatives that a written value stands for."""
    if not isinstance(value, list):
        return [value]
    if list_valued and not any(isinstance(item, list) for item in value):
        return [value]
    return value


__all__ = ["expand", "matches", "resolve_device"]
S = TypeVar("S", ModelSpec, TrainSpec)
N = TypeVar("N", ModelSpec, TrainSpec, PartitionSpec)
Settings = tuple[list[ModelSpec], list[TrainSpec]]
"""Models and trainings."""


def expand(suite: Suite, *, device: str | None = None, data_dir: Path | None = None) -> list[TrialConfig]:
    """Return the trials of a suite, each once, in an order that only the suite's own lists decide.

    Data sets vary slowest, then models, training, partitions, networks, methods and seeds. Needs no data to
    be present.

    Args:
        suite: what `load_suite` returned.
        device: "cpu", "cuda" or "auto" in place of the suite's.
        data_dir: where the user's own data sets are, and partition files that are not beside the suite;
            default $HARNESS_DATA.

    Raises:
        UserError: a line for each unknown data set, method or option, or bad value of an option.
    """
    errors: list[UserError] = []
    plugins = _plugins(suite, errors)
    if errors:  # what is unknown may be in a plugin
        raise gather(errors)
    datasets = list(_datasets(suite, plugins, data_dir, errors))
    methods = list(_methods(suite, plugins, errors))
    partitions = list(_partitions(suite, plugins, data_dir, errors))
    excludes = _excludes(suite, {key for method, _ in methods for key in method.options}, errors)
    if errors:
        raise gather(errors)
    trials: dict[str, TrialConfig] = {}
    varied = _varied(suite.train)
    for (dataset, model, train), partition, network, (method, plugin), seed in itertools.product(
        datasets, partitions, suite.network, methods, suite.seeds
    ):
        trial = TrialConfig(
            dataset=dataset,
            model=model,
            train=train,
            partition=partition,
            method=method,
            plugin=plugin,
            plugins=_sources_of(model, train, partition, plugins),
            network=network if network and partition.parts > network.ranks_per_host else None,
            timing=suite.timing,
            traffic=suite.traffic,
            seed=seed,
            device=resolve_device(device or suite.device),
            varied=varied,
        )
        if not any(all(holds(trial, key, values) for key, values in keys.items()) for keys in excludes):
            _add(trials, trial, suite)
    if errors := list(claim_errors(suite, list(trials.values()))):
        raise gather(errors)
    return list(trials.values())


def resolve_device(device: str) -> Literal["cpu", "cuda"]:
    """Return the device that "auto" stands for on this machine: cuda where torch sees a GPU."""
    if device == "auto":
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    if device in ("cpu", "cuda"):
        return "cpu" if device == "cpu" else "cuda"
    raise UserError(f"bad value '{device}', allowed: auto, cpu, cuda", key="device")


def _varied(trainings: Sequence[TrainSpec]) -> tuple[str, ...]:
    """Return the keys that have several values, in their usual order."""
    first = trainings[0]
    return tuple(
        key for key in TrainSpec.model_fields if any(getattr(t, key) != getattr(first, key) for t in trainings)
    )


def _add(trials: dict[str, TrialConfig], trial: TrialConfig, suite: Suite) -> None:
    """Add a trial; the same one again is merged."""
    same = trials.setdefault(trial.id, trial)
    if same != trial:
        name = trial.partition.file.name if trial.partition.file else ""
        raise suite.source.error(("partition", "file"), f"two partition files are named '{name}'", "rename one")


def _datasets(
    suite: Suite, plugins: Mapping[PluginKey, PluginSource], data_dir: Path | None, errors: list[UserError]
) -> Iterator[tuple[DatasetSpec, ModelSpec, TrainSpec]]:
    """Yield each data set with complete options, and with each model the training it gets on it."""
    from harness.data.registry import dataset_info

    usual = _settings(suite.model, suite.train, suite, suite.source.variant, plugins, errors)
    settings = _per_dataset(suite, plugins, errors)
    for i, entry in enumerate(suite.datasets):
        models, trainings = settings.get(entry.name, usual)
        for options in grid(entry.options):
            try:
                info = dataset_info(DatasetSpec(name=entry.name, options=options), data_dir)
                _check_finite(options)
            except UserError as error:
                path = ("datasets", i, *_blamed(error, entry.name, options))
                errors.append(suite.source.error(path, error.message, error.fix))
                continue
            defaults = {key: option.default for key, option in info.options.items()}
            complete = {key: _as(value, defaults[key]) for key, value in (defaults | options).items()}
            spec = DatasetSpec(name=entry.name, options=complete)
            if not info.multilabel:
                errors += _need_label_sets(suite, entry.name, trainings)
            resolved = [_resolved(train, info) for train in trainings]
            yield from ((spec, model, train) for model in models for train in resolved)


def _resolved(train: TrainSpec, info: DatasetInfo) -> TrainSpec:
    """Return the training with what the data set decides filled in."""
    inductive = info.inductive if train.inductive is None else train.inductive
    return train.model_copy(update={"inductive": inductive})


def _need_label_sets(suite: Suite, name: str, trainings: Sequence[TrainSpec]) -> list[UserError]:
    """Return an error if nodes with one label each are to be weighted as if they had sets of them."""
    weight = next((train.pos_weight for train in trainings if train.pos_weight != 1), None)
    if weight is None:
        return []
    own = "pos_weight" in suite.per_dataset.get(name, DatasetSettings()).train
    path = ("per_dataset", name, "train", "pos_weight") if own else ("train", "pos_weight")
    message = f"bad value {weight:g}: the nodes of '{name}' have one label each, its loss no positive term"
    fix = "remove it, or give it to the multi-label sets by per_dataset"
    return [suite.source.error(path, message, fix)]


def _settings(
    models: Sequence[ModelSpec],
    trainings: Sequence[TrainSpec],
    suite: Suite,
    where: Callable[[str, int], KeyPath],
    plugins: Mapping[PluginKey, PluginSource],
    errors: list[UserError],
) -> Settings:
    """Return models and trainings, checked; `where`: they are written, by section and number."""
    return (
        [_checked(m, "model", suite, where("model", i), plugins, errors) for i, m in enumerate(models)],
        [_checked(t, "train", suite, where("train", i), plugins, errors) for i, t in enumerate(trainings)],
    )


def _per_dataset(
    suite: Suite, plugins: Mapping[PluginKey, PluginSource], errors: list[UserError]
) -> dict[str, Settings]:
    """Return the models and the trainings of the data sets that have settings of their own."""
    found: dict[str, Settings] = {}
    names = {entry.name for entry in suite.datasets}
    for name, own in suite.per_dataset.items():
        path = ("per_dataset", name)
        if name not in names:
            errors.append(suite.source.error(path, "no data set of the suite", nearest(name, names)))
        at = partial(_at_option, suite, (*path, "model"))
        models = [_laid_over(model, own.model, at, errors) for model in suite.model]
        at = partial(_at_option, suite, (*path, "train"))
        trainings = [_laid_over(train, own.train, at, errors) for train in suite.train]
        where = partial(_within, path)
        found[name] = _settings(models, trainings, suite, where, plugins, errors)
    return found


def _within(path: KeyPath, section: str, _number: int) -> KeyPath:
    return (*path, section)


def _laid_over(spec: S, own: Mapping[str, Any], at: ErrorAt, errors: list[UserError]) -> S:
    """Return a section with some of its keys replaced, checked; as it was if they are wrong."""
    try:
        return type(spec).model_validate(spec.model_dump() | dict(own))
    except ValidationError as error:
        errors.append(explain(error, at, partial(_fields_of, type(spec))))
        return spec


def _blamed(error: UserError, name: str, options: Mapping[str, Any]) -> KeyPath:
    """Return the option that an error is about: its key ends in it, or its message quotes it."""
    words = (error.key or "").replace(":", " ").split()
    for key in options:
        if words[-1:] == [key] or f"'{key}'" in error.message:
            return (name, key)
    return ()


def _as(value: Any, default: Any) -> Any:
    """Write 1 as 1.0 where the option is a fraction, so that both are the same trial."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and isinstance(default, float) else value


def _check_finite(options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"bad value {value}: must be finite", key=key)


def _plugins(suite: Suite, errors: list[UserError]) -> Mapping[PluginKey, PluginSource]:
    """Return what the suite's plugins bring, by kind and name."""
    found: dict[PluginKey, PluginSource] = {}
    for i, entry in enumerate(suite.plugins):
        try:
            found = find_plugins([entry], suite.directory, found)
        except UserError as error:
            errors.append(suite.source.error(("plugins", i), str(error)))
    return found


def _methods(
    suite: Suite, plugins: Mapping[PluginKey, PluginSource], errors: list[UserError]
) -> Iterator[tuple[MethodSpec, PluginSource | None]]:
    """Yield each method with complete, checked options, and where its code is."""
    from harness.runtime.method import METHODS

    for i, entry in enumerate(suite.methods):
        try:
            found = METHODS.find(entry.name, plugins)
        except UserError as error:
            errors.append(suite.source.error(("methods", i), error.message, error.fix))
            continue
        model = found.value.Options
        listed = {key for key, field in model.model_fields.items() if takes_list(field.annotation)}
        try:
            written = _with_new_names(entry.options, model)
        except UserError as error:
            errors.append(suite.source.error(("methods", i, entry.name, error.key or ""), error.message, error.fix))
            continue
        for options in grid(written, listed):
            try:
                checked = model.model_validate(options)
            except ValidationError as error:
                at = partial(_at_option, suite, ("methods", i, entry.name))
                errors.append(explain(error, at, partial(_fields_of, model), depth=1))
                continue
            yield MethodSpec(name=entry.name, options=checked.model_dump(mode="json")), found.source


def _with_new_names(options: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return a method's options as written, those that were renamed under today's names."""
    found = dict(options)
    for old, new in _renamed(options, model).items():
        if new in found:
            raise UserError(f"given twice: '{old}' is an older name of '{new}'", key=old, fix=f"keep '{new}'")
        found[new] = found.pop(old)
    return found


def _renamed(options: Mapping[str, Any], model: type[BaseModel]) -> dict[str, str]:
    """Return the older names that are written, with today's; a plugin may have an option of an older name."""
    fields = model.model_fields
    return {old: new for old, new in RENAMED.items() if old in options and old not in fields and new in fields}


def older_names(suite: Suite) -> list[str]:
    """Return a line for each option that a suite writes under an older name."""
    from harness.runtime.method import METHODS

    found = []
    plugins = _plugins(suite, [])
    for i, entry in enumerate(suite.methods):
        for old, new in _renamed(entry.options, METHODS.find(entry.name, plugins).value.Options).items():
            message = f"'{old}' is called '{new}' now; it is read as before"
            found.append(str(suite.source.error(("methods", i, entry.name, old), message)))
    return found


def _checked(
    spec: N,
    section: str,
    suite: Suite,
    path: KeyPath,
    plugins: Mapping[PluginKey, PluginSource],
    errors: list[UserError],
) -> N:
    """Return a section with what of its own options differs from their defaults; errors where it is wrong.

    `path`: where the section is written.
    """
    for registry, key, own in named_in(section):
        name = getattr(spec, key)
        try:
            found: Any = registry.find(name, plugins).value
            options = found.Options.model_validate(getattr(spec, own))
            spec = spec.model_copy(update={own: options.model_dump(mode="json", exclude_defaults=True)})
            if isinstance(spec, ModelSpec):
                found.check_spec(spec)
        except ValidationError as error:
            at = partial(_at_option, suite, (*path, key, name))
            errors.append(explain(error, at, partial(_fields_of, found.Options), depth=1))
        except UserError as error:
            errors.append(suite.source.error((*path, key), error.message, error.fix))
        except ValueError as error:
            errors.append(suite.source.error(path, str(error)))
    return spec


def _sources_of(
    model: ModelSpec, train: TrainSpec, partition: PartitionSpec, plugins: Mapping[PluginKey, PluginSource]
) -> dict[str, PluginSource]:
    """Return where the code is, by kind, of what a trial names besides its method."""
    sources = {}
    for section, spec in (("model", model), ("train", train), ("partition", partition)):
        for registry, key, _ in named_in(section):
            source = registry.find(getattr(spec, key), plugins).source
            if source is not None:
                sources[registry.kind] = source
    return sources


def _at_option(suite: Suite, entry: KeyPath, option: KeyPath, message: str, fix: str | None) -> UserError:
    return suite.source.error((*entry, *option), message, fix)


def _fields_of(model: type[BaseModel], _section: KeyPath) -> Mapping[str, Any]:
    return model.model_fields


def _partitions(
    suite: Suite, plugins: Mapping[PluginKey, PluginSource], data_dir: Path | None, errors: list[UserError]
) -> Iterator[PartitionSpec]:
    """Yield each partition without what its method does not read, its file found where it is there."""
    from harness.data.partition import PARTITIONERS

    for i, written in enumerate(suite.partition):
        before, path = len(errors), suite.source.variant("partition", i)
        spec = _checked(written, "partition", suite, path, plugins, errors)
        if len(errors) > before:
            continue
        reads = PARTITIONERS.find(spec.method, plugins).value.reads
        if "file" in reads:
            if spec.file is None:
                message = "missing: method `file` reads the part of each node from a .npy file"
                errors.append(suite.source.error(("partition", "file"), message, "add `file: NAME.npy`"))
                continue
            yield PartitionSpec(parts=spec.parts, method=spec.method, file=_find(spec.file, suite, data_dir))
        else:
            unread = {} if "objective" in reads else {"objective": "volume"}
            yield spec.model_copy(update={"file": None, **unread})


def _find(file: Path, suite: Suite, data_dir: Path | None) -> Path:
    """Return where a partition's file is: beside the suite, else in the data directory, else as written."""
    if data_dir is None and "HARNESS_DATA" in os.environ:
        data_dir = Path(os.environ["HARNESS_DATA"])
    for directory in (suite.directory, data_dir):
        if directory is not None and (directory / file).is_file():
            return (directory / file).resolve()
    return file


def _excludes(suite: Suite, options: Collection[str], errors: list[UserError]) -> list[dict[str, Sequence[Any]]]:
    """Return the exclusions, every value a list of alternatives, their keys checked.

    `options` are those of the suite's methods.
    """
    rules: list[dict[str, Sequence[Any]]] = []
    for i, written in enumerate(suite.exclude):
        try:
            check_keys(written, options)
        except UserError as error:
            errors.append(suite.source.error(("exclude", i, error.key or ""), error.message, error.fix))
        if not written:
            errors.append(suite.source.error(("exclude", i), "excludes everything", "name what to exclude"))
        rules.append(rule(written))
    return rules
