"""The search space of a method, and the trial of a point in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.data.registry import dataset_info
from harness.errors import UserError, nearest
from harness.runtime.method import METHODS
from harness.runtime.run_config import MethodSpec, TrainSpec, TuningRun
from harness.spec import DatasetSpec, of_presets
from harness.suite.document import KeyPath
from harness.suite.expand import expand
from harness.suite.schema import MethodSettings, OwnModel, OwnSettings, Suite, TrialConfig
from harness.suite.sections import BEST, DEFAULT_SPACE, Range, Space, TuningSpec

Point = Mapping[str, Any]
"""A value of every key that is searched: `train.lr`, `model.dropout`, or an option of the method."""

SPACE: TypeAdapter[Space] = TypeAdapter(Space)


@dataclass(frozen=True)
class Subject:
    """A method on a data set, whose settings are searched."""

    dataset: DatasetSpec
    method: MethodSpec
    space: Mapping[str, Range]

    @property
    def name(self) -> str:
        """Data set and method, for people."""
        return f"{self.method.name} on {self.dataset.name}"


def settings_with(settings: MethodSettings, dataset: str, point: Point) -> MethodSettings:
    """Return what a method sets itself with a point's values on a data set, over all else."""
    on_it = settings.per_dataset.get(dataset, OwnSettings())
    own: dict[str, dict[str, Any]] = {"train": {}, "model": {}, "options": {}}
    for key, value in point.items():
        section, dot, name = key.partition(".")
        own[section if dot else "options"][name if dot else key] = value
    laid = OwnSettings(
        train=on_it.train | own["train"],
        model=OwnModel(**on_it.model.written() | own["model"]),
        options=on_it.options | own["options"],
    )
    return settings.model_copy(update={"per_dataset": {**settings.per_dataset, dataset: laid}})


@dataclass(frozen=True)
class Searched:
    """A suite with a tuning; `device`, `data_dir`: as for `expand`."""

    suite: Suite
    device: str | None = None
    data_dir: Path | None = None

    @property
    def spec(self) -> TuningSpec:
        """The suite's `tuning`; UserError if it has none."""
        if self.suite.tuning is None:
            raise UserError("the suite has no `tuning`", file=self.suite.source.file, fix="add `tuning: {}`")
        return self.suite.tuning

    def error(self, path: KeyPath, message: str, fix: str | None = None) -> UserError:
        """Return an error that points at a key of the suite's tuning."""
        return self.suite.source.error(("tuning", *path), message, fix)

    def subjects(self) -> list[Subject]:
        """Return each method on each data set, in the suite's order; of several networks on the first.

        Raises:
            UserError: the suite is not one workload a data set, or its space is not one of its methods.
        """
        suite = self.suite
        for section in ("model", "train", "partition"):
            if (count := len(getattr(suite, section))) > 1:
                what = f"`{section}` has {count} variants: a method is tuned for one"
                raise self.error((), what, f"leave one, or override it: --set {section}...=VALUE")
        asks_time = self.spec.goal == "time_to_target" or self.spec.budget.seconds or self.spec.budget.total_seconds
        if suite.timing == "off" and asks_time:
            what = "the tuning asks for seconds, and epochs are not timed with `timing: off`"
            raise suite.source.error(("timing",), what, "timing: wall")
        on_first = suite.model_copy(update={"network": suite.network[:1]})
        trials = expand(on_first, device=self.device, data_dir=self.data_dir)
        found: dict[tuple[str, str], Subject] = {}
        for dataset in {trial.dataset.name: trial.dataset for trial in trials}.values():
            if not dataset_info(dataset, self.data_dir).validates:
                what = f"'{dataset.name}' has no validation nodes: no score says which settings are better"
                raise self.error((), what, "give the set validation nodes, or leave it out")
        for trial in trials:
            if trial.seed != suite.seeds[0] or trial.repeat:
                continue
            key = trial.dataset.name, trial.method.name
            subject = Subject(trial.dataset, trial.method, self._space_of(trial))
            if found.setdefault(key, subject) != subject:
                what = "data sets" if found[key].dataset != trial.dataset else f"variants of '{key[1]}'"
                apart, once = "tune them in suites of their own", "write it once: options are searched"
                fix = apart if what == "data sets" else once
                raise self.error((), f"several {what} named '{key[0] if what == 'data sets' else key[1]}'", fix)
        self._check_names({method for _, method in found})
        for subject in found.values():
            self._check_values(subject)
        return list(found.values())

    def _check_names(self, methods: set[str]) -> None:
        spec = self.spec
        for name in spec.per_method:
            if name not in methods:
                raise self.error(("per_method", name), "no method of the suite", nearest(name, methods))
        if not isinstance(spec.target, float | None) and spec.target.of not in methods | {BEST}:
            raise self.error(("target", "of"), f"'{spec.target.of}' is no method of the suite",
                             nearest(spec.target.of, methods))  # fmt: skip
        if len(set(self.suite.seeds)) < FEWEST_SEEDS:
            count = len(set(self.suite.seeds))
            what = f"{count} of at least {FEWEST_SEEDS} seeds: the chosen settings are trained again"
            raise self.suite.source.error(("seeds",), what, "seeds: [0, 1, 2, 3, 4]")
        if used := sorted(set(self.suite.seeds) & {seed_of(study) for study in range(spec.studies)}):
            what = f"{used[0]} is a seed of the search: results would not be of fresh ones"
            raise self.suite.source.error(("seeds",), what, f"seeds below {seed_of(0)}")

    def _space_of(self, trial: TrialConfig) -> dict[str, Range]:
        """Return what is searched of a method: shared keys, then its own options."""
        spec, method = self.spec, trial.method.name
        found = self.suite.catalogue().find(METHODS, method).value
        entry = next(entry for entry in self.suite.methods if entry.name == method)
        shared: Mapping[str, Any] = spec.space or DEFAULT_SPACE
        fixed = {*entry.options, *of_presets(found.Options.presets, entry.options)}
        declared = {key: values for key, values in found.space.items() if key not in fixed}
        given = spec.per_method.get(method, {})
        try:
            space = {**SPACE.validate_python({**shared, **declared}), **given}
        except ValidationError as error:
            raise UserError(f"space of method '{method}': {error.errors()[0]['msg']}") from error
        for key in space:
            path = ("per_method", method, key) if key in given else ("space", key)
            section, dot, name = key.partition(".")
            options = found.Options.model_fields
            known = {"train": TrainSpec.model_fields, "model": OwnModel.model_fields}.get(section) if dot else options
            if known is None or (name if dot else key) not in known:
                every = [
                    *(f"train.{k}" for k in TrainSpec.model_fields),
                    *(f"model.{k}" for k in OwnModel.model_fields),
                ]
                raise self.error(path, "unknown key", nearest(key, [*every, *(options if key in given else ())]))
        return space

    def _check_values(self, subject: Subject) -> None:
        """Refuse ranges with values that a trial would refuse."""
        for key, values in subject.space.items():
            tried = values.choice if values.bounds is None else values.bounds
            for value in tried or ():
                try:
                    self.trial(subject, {key: int(value) if values.integer else value}, study=0)
                except UserError as error:
                    own = key in self.spec.per_method.get(subject.method.name, {})
                    path = ("per_method", subject.method.name, key) if own else ("space", key)
                    raise self.error(path, error.message.split("\n")[0], error.fix) from error

    def trial(
        self,
        subject: Subject,
        point: Point,
        study: int,
        rungs: tuple[tuple[float, float], ...] = (),
        size: Mapping[str, int] | None = None,
    ) -> TrialConfig:
        """Return the trial of a point; UserError if a value of it is none. `size`: other `layers`, `hidden`."""
        suite, name, dataset = self.suite, subject.method.name, subject.dataset
        entry = next(entry for entry in suite.methods if entry.name == name)
        settings = settings_with(suite.per_method.get(name, MethodSettings()), dataset.name, point)
        kept = {key: own for key, own in settings.per_dataset.items() if key == dataset.name}
        alone = suite.model_copy(
            update={
                "datasets": (dataset,),
                "methods": (entry,),
                "network": suite.network[:1],
                "per_dataset": {key: own for key, own in suite.per_dataset.items() if key == dataset.name},
                "per_method": {name: settings.model_copy(update={"per_dataset": kept})},
                "seeds": (seed_of(study),),
                "repeat": 1,
                "claims": (),
            }
        )
        (trial,) = expand(alone, device=self.device, data_dir=self.data_dir)
        limits = {
            "seconds": self.spec.budget.seconds,
            "target": self.known_target if trial.train.stop_at_target else None,
        }
        train = trial.train.model_copy(update={key: value for key, value in limits.items() if value is not None})
        model = trial.model.model_copy(update=size)
        return trial.model_copy(update={"train": train, "model": model, "tuning": TuningRun(study=study, rungs=rungs)})

    @property
    def known_target(self) -> float | None:
        """The target, where it is known before the search: with `stop_at_target` a trial ends there."""
        spec = self.spec
        return spec.target if spec.goal == "time_to_target" and isinstance(spec.target, float) else None


FEWEST_SEEDS = 5
"""Fresh seeds that chosen settings are trained with, at least."""


def seed_of(study: int) -> int:
    """Return the seed of all trials of a study."""
    return 10_000 + study
