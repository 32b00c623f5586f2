"""`harness tune`: search, choose, and train the chosen settings again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from harness.errors import UserError
from harness.registry import whole_entries
from harness.results.record import other_model
from harness.results.record_store import ResultStore, read_at
from harness.results.tuned import ChangedTrial, TunedMethod, Tuning, TuningTrial
from harness.runtime.method import METHODS
from harness.suite.schema import MethodSettings, Suite, TrialConfig
from harness.suite.sections import BEST, RelativeTarget
from harness.suite.suite_file import as_written
from harness.tune.space import Point, Searched, Subject, settings_with
from harness.tune.study import Chosen, Curve, Rungs, Study, Tried, asha_rungs, choose, curve_of, studies_at, success

JOURNAL = "optuna.journal"

Change = tuple[str, Point, Mapping[str, int]]
"""Of what was chosen: what is other than it, the settings, and the model's `layers` or `hidden`."""

Run = Callable[[Suite, Sequence[TrialConfig], ResultStore], int]
"""Runs trials into a store and returns the exit code of the runner."""


@dataclass(frozen=True)
class Found:
    """What a tuning of a method on a data set came to: its settings (None: all trials failed), and all it tried."""

    subject: Subject
    chosen: Chosen | None
    target: float | None
    tried: tuple[tuple[int, Tried], ...]  # with its study
    changed: tuple[tuple[str, Tried], ...] = ()  # with the change to what was chosen

    @property
    def trials(self) -> int:
        """How many trials it took."""
        return len(self.tried)

    @property
    def trained_s(self) -> float:
        """How many seconds they trained."""
        return sum(each.curve.trained_s for _, each in self.tried if each.curve is not None)


@dataclass
class Tuner:
    """A tuning of a suite, new or resumed; its trials lie in the store `NAME-tuning`."""

    searched: Searched
    results: Path
    run: Run
    report: Callable[[str], None] = lambda line: None
    _curves: dict[str, Curve] = field(default_factory=dict)
    _trials: dict[tuple[str, int], TrialConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        suite = self.searched.suite
        self.subjects = self.searched.subjects()  # what is wrong with the suite is said before anything is written
        self.store = ResultStore(self.results, f"{suite.name}-tuning")
        self.suite = suite.model_copy(update={"name": self.store.suite, "claims": (), "repeat": 1})

    def search(self) -> tuple[list[Found], int]:
        """Search every method's settings on every data set; returns what was found, and the runner's exit code.

        Goes on where an earlier search stopped. With a relative target its baseline is searched first.
        """
        spec = self.searched.spec
        subjects = self.subjects
        kept = studies_at(self.store.directory / JOURNAL, spec, subjects)
        studies = {id(subject): own for subject, own in zip(subjects, kept, strict=True)}
        first = [s for s in subjects if isinstance(spec.target, RelativeTarget) and s.method.name == spec.target.of]
        targets: dict[str, float | None] = {}
        for group in (first, [s for s in subjects if s not in first]):
            if not group:
                continue
            targets = self._targets(first, studies) if group is not first else {}
            code = self._search([study for subject in group for study in studies[id(subject)]], targets)
            if code > 1:
                return [], code
        best = isinstance(spec.target, RelativeTarget) and spec.target.of == BEST
        # Who trains another model than the suite's says nothing of what the others can reach.
        own = {spec.name for spec in self.suite.model}
        alike = [s for s in subjects if any(trial.model.name in own for trial in self._trials_of(studies[id(s)]))]
        targets = self._targets((alike or subjects) if best else first, studies)
        return [self._found(subject, studies[id(subject)], targets) for subject in subjects], code

    def _targets(self, baseline: Sequence[Subject], studies: Mapping[int, list[Study]]) -> dict[str, float | None]:
        """Return the target of each data set by its name; a relative one is below the baseline's best chosen trial."""
        spec = self.searched.spec
        names = {dataset.name for dataset in self.searched.suite.datasets}
        if not isinstance(spec.target, RelativeTarget):
            return dict.fromkeys(names, spec.target)
        found: dict[str, float | None] = {}
        for name in names if baseline else ():
            tried = [[self._tried(study) for study in studies[id(s)]] for s in baseline if s.dataset.name == name]
            every = [choose(own, "best_val", None, spec.budget.seconds) for own in tried]
            top = max((chosen.success for chosen in every if chosen), default=None)
            if top is None:
                what = f"all trials of {spec.target.of} on {name} failed: there is no score to be below"
                raise self.searched.error(("target", "of"), what, f"see `harness status {self.store.directory}`")
            if top <= spec.target.below:
                what = f"bad value {spec.target.below:g}: {spec.target.of} came to {top:.4f} on {name} only"
                fix = "make it less, or train longer; a set without validation nodes has no score"
                raise self.searched.error(("target", "below"), what, fix)
            found[name] = top - spec.target.below
        return found

    def _search(self, studies: Sequence[Study], targets: Mapping[str, float | None]) -> int:
        """Run rounds of trials until the studies have spent their budgets; returns the runner's exit code."""
        known, code, spec = -1, 0, self.searched.spec
        while True:
            for study in studies:
                self._ask(study)
            waiting = [(study, trial) for study in studies for trial in study.waiting]
            if not waiting:
                return code
            trials = {(study.name, each.number): self._trial(study, each) for study, each in waiting}
            done = sum(len(study.trials) - len(study.waiting) for study in studies)
            if done != known:
                total = sum(study.spec.budget.trials for study in studies)
                self.report(f"search: {done} of {total} trials done")
                known = done
            each_once = list({trial.id: trial for trial in trials.values()}.values())
            code = self.run(self.suite, each_once, self.store)
            if code > 1:
                return code
            code = 0  # a failed trial is one of the search
            finished = self.store.finished()
            for study, each in waiting:
                trial = trials[study.name, each.number]
                if trial.id in finished:
                    curve = self._curve(trial) if finished[trial.id] == "ok" else None
                    target = targets.get(study.subject.dataset.name)
                    value = None if curve is None else success(curve, spec.goal, target, spec.budget.seconds)
                    study.finish(each, value)

    def _ask(self, study: Study) -> None:
        """Begin as many trials as may run before the results of others are known."""
        spec = study.spec
        learns = spec.sampler == "tpe" or spec.pruner == "asha" or spec.budget.total_seconds is not None
        while len(study.trials) < spec.budget.trials:
            if learns and study.waiting:
                return
            timed = spec.pruner == "asha" or spec.budget.total_seconds is not None
            curves = [each.curve for each in self._tried(study) if each.curve is not None] if timed else []
            spent_s = sum(curve.trained_s for curve in curves)
            if spec.budget.total_seconds is not None and spent_s >= spec.budget.total_seconds:
                return
            rungs: Rungs = ()
            if spec.pruner == "asha" and spec.budget.seconds is not None:
                rungs = asha_rungs(spec.budget.seconds, curves, self.searched.known_target)
            if not study.ask(rungs, alone=learns):
                return

    def _trial(self, study: Study, each: FrozenTrial) -> TrialConfig:
        key = study.name, each.number
        if key not in self._trials:
            self._trials[key] = self.searched.trial(study.subject, study.point(each), study.index, study.rungs(each))
        return self._trials[key]

    def _trials_of(self, studies: Sequence[Study]) -> Iterator[TrialConfig]:
        return (self._trial(study, each) for study in studies for each in study.trials)

    def _curve(self, trial: TrialConfig) -> Curve:
        if trial.id not in self._curves:
            self._curves[trial.id] = curve_of(self.store.directory / trial.id)
        return self._curves[trial.id]

    def _tried(self, study: Study) -> list[Tried]:
        finished, found = self.store.finished(), []
        for each in study.trials:
            trial = self._trial(study, each)
            if trial.id in finished:
                curve = self._curve(trial) if finished[trial.id] == "ok" else None
                found.append(Tried(each.number, trial.id, study.point(each), curve))
        return found

    def _found(self, subject: Subject, studies: Sequence[Study], targets: Mapping[str, float | None]) -> Found:
        spec, target = self.searched.spec, targets.get(subject.dataset.name)
        tried = [self._tried(study) for study in studies]
        chosen = choose(tried, spec.goal, target, spec.budget.seconds)
        return Found(subject, chosen, target, tuple((i, each) for i, study in enumerate(tried) for each in study))

    def try_changes(self, found: Sequence[Found], *, cross: bool, sensitivity: bool) -> tuple[list[Found], int]:
        """Run a trial of each change to what was chosen, with the seed of its study; returns also the runner's code.

        `cross`: the shared settings of the other family's best method (Bajaj et al., PVLDB 18(4), 2024); `sensitivity`:
        a layer more and less, twice and half the width.
        """
        asked = [
            (each, run, change, point, self.searched.trial(each.subject, point, each.chosen.study, size=size))
            for each in found
            if each.chosen is not None
            for run, changes in ((cross, self._crossed(each, found)), (sensitivity, self._resized(each)))
            for change, point, size in changes
        ]
        todo = {trial.id: trial for _, run, _, _, trial in asked if run}
        code = self.run(self.suite, list(todo.values()), self.store) if todo else 0
        finished, changed = self.store.finished(), dict[int, list[tuple[str, Tried]]]()
        for i, (each, run, change, point, trial) in enumerate(asked):
            earlier = trial.id not in {tried.trial for _, tried in each.tried}  # an earlier call asked for it
            if trial.id in finished and (run or earlier):
                curve = self._curve(trial) if finished[trial.id] == "ok" else None
                changed.setdefault(id(each), []).append((change, Tried(i, trial.id, dict(point), curve)))
        return [replace(each, changed=tuple(changed.get(id(each), ()))) for each in found], code if code > 1 else 0

    def _crossed(self, each: Found, found: Sequence[Found]) -> Iterator[Change]:
        """Yield the settings of the best method of the other family; those of the method's own options stay."""
        others = [
            other
            for other in found
            if other.subject.dataset == each.subject.dataset
            and other.chosen is not None
            and self._family(other) != self._family(each)
        ]
        if others and each.chosen is not None:
            best = max(others, key=lambda other: other.chosen.success if other.chosen else 0.0)
            assert best.chosen is not None
            own, theirs = each.chosen.tried.point, best.chosen.tried.point
            point = {k: v for k, v in own.items() if "." not in k} | {k: v for k, v in theirs.items() if "." in k}
            yield f"settings of {best.subject.method.name}", point, {}

    def _family(self, each: Found) -> str:
        return self.searched.suite.catalogue().find(METHODS, each.subject.method.name).value.family

    def _resized(self, each: Found) -> Iterator[Change]:
        assert each.chosen is not None
        point = each.chosen.tried.point
        trial = self.searched.trial(each.subject, point, each.chosen.study)
        model = trial.model
        if other_model(trial.model_dump()):  # the method's own, whose sizes follow from its options
            return
        for layers in (model.layers - 1, model.layers + 1):
            if layers > 0:
                yield f"layers {layers}", point, {"layers": layers}
        for hidden in (model.hidden // 2, 2 * model.hidden):
            yield f"hidden {hidden}", point, {"hidden": hidden}

    def outcome(self, found: Sequence[Found]) -> Tuning:
        """Return all that was tried, chosen and spent, as it is kept."""
        spec = self.searched.spec
        return Tuning(
            search=self.store.suite,
            suite=tuned_name(self.searched.suite),
            goal=spec.goal,
            sampler=spec.sampler,
            methods=tuple(
                TunedMethod(
                    dataset=each.subject.dataset.name,
                    method=each.subject.method.name,
                    target=each.target,
                    tried=tuple(self._kept(study, tried, each.target) for study, tried in each.tried),
                    chosen=each.chosen.tried.trial if each.chosen else None,
                    study=each.chosen.study if each.chosen else None,
                    changed=tuple(
                        ChangedTrial(
                            change=change,
                            **self._kept(each.chosen.study if each.chosen else 0, tried, each.target).model_dump(),
                        )
                        for change, tried in each.changed
                    ),
                )
                for each in found
            ),
        )

    def _kept(self, study: int, tried: Tried, target: float | None) -> TuningTrial:
        curve, seconds = tried.curve, self.searched.spec.budget.seconds
        return TuningTrial(
            study=study,
            number=tried.number,
            trial=tried.trial,
            point=tried.point,
            best_val=curve.best(seconds) if curve else None,
            target_s=curve.time_to(target, seconds) if curve and target is not None else None,
            trained_s=curve.trained_s if curve else 0.0,
            wall_s=read_at(self.store.directory / tried.trial).wall_s or 0.0,
        )

    def check_reached(self) -> None:
        """Raise UserError if no trial of any method came to a target that the suite names as a number."""
        spec = self.searched.spec
        if not isinstance(spec.target, float):
            return
        curves = self._curves.values()
        if not any(curve.best() >= spec.target for curve in curves):
            best = max((curve.best() for curve in curves), default=0.0)
            what = f"bad value {spec.target:g}: no trial of any method came to it, the best to {best:.4f}"
            raise self.searched.error(("target",), what, "lower it, or give the search more budget or epochs")


def tuned_name(suite: Suite) -> str:
    """Return the name of the suite of chosen settings."""
    return f"{suite.name}-tuned"


def tuned_suite(suite: Suite, found: Sequence[Found]) -> Suite:
    """Return the suite with every method's chosen settings, see `tuned_name`.

    Raises:
        UserError: no trial of some method ended well.
    """
    settings = dict(suite.per_method)
    targets: dict[str, float] = {}
    for each in found:
        if each.chosen is None:
            fix = f"see `harness status` of {suite.name}-tuning, or leave the method out"
            raise UserError(f"all trials of {each.subject.name} failed", file=suite.source.file, fix=fix)
        name, dataset = each.subject.method.name, each.subject.dataset.name
        settings[name] = settings_with(settings.get(name, MethodSettings()), dataset, each.chosen.tried.point)
        if each.target is not None:
            targets[dataset] = each.target
    data = {key: value for key, value in as_written(suite).items() if key != "tuning"}
    per_dataset: dict[str, Any] = data.setdefault("per_dataset", {})
    for dataset, target in targets.items():
        train = per_dataset.setdefault(dataset, {}).setdefault("train", {})
        train["target"] = target
    seconds = suite.tuning.budget.seconds if suite.tuning else None
    if seconds is not None:
        data.setdefault("train", {}).setdefault("seconds", seconds)
    if suite.plugins:
        data["plugins"] = whole_entries(suite.plugins, suite.directory)
    file = suite.partition[0].file
    if file is not None and suite.directory is not None and (suite.directory / file).is_file():
        data["partition"]["file"] = str((suite.directory / file).resolve())
    data |= {
        "name": tuned_name(suite),
        "per_method": {name: own.model_dump(mode="json", exclude_unset=True) for name, own in settings.items()},
    }
    tuned = Suite.model_validate(data)
    tuned._source = suite.source
    return tuned
