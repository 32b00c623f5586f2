"""The report of chosen settings: what their search cost and gained, against the trials as they were made up."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from report.measured import listed, one_section, shown
from tune.made_up import EPOCHS, Machine, curve, suite, to_the_end, tuned_results

from harness.report import write_report
from harness.report.views.options import TuningView
from harness.results.frames import load_inputs
from harness.results.record_store import ResultStore, kept
from harness.results.stats import significant
from harness.results.tuned import TUNING_FILE, ChangedTrial, read_tuning
from harness.suite.expand import expand
from harness.tune import tuned_suite


def tuned_view(root: Path, machine: Machine, sampler: str = "random", target: float | None = None) -> TuningView:
    """Search, and train what was chosen."""
    return TuningView(one_section(tuned_results(root, machine, sampler, target)))


def test_the_table_has_the_cost_and_the_gain(tmp_path: Path) -> None:
    view = tuned_view(tmp_path, machine := Machine(), target=0.7)
    table = view.table()
    assert table is not None
    assert len(listed(table)) == 2
    for variant in view.section.variants:
        ran = [t for t in machine.ran if t.method.name == variant.method]
        best = {t.id: max(curve(t)[1]) for t in ran}
        own = [best[t.id] for t in ran if t.train.lr == 0.01]
        drawn = [t for t in ran if t.train.lr != 0.01]
        assert (len(own), len(drawn)) == (2, 8)
        told = shown(table, variant.label)
        assert told["Trials"] == "10"
        assert float(told["Trained (s)"]) == pytest.approx(10 * EPOCHS * 0.1)
        assert float(told["Own (%)"]) == pytest.approx(100 * statistics.fmean(own), abs=0.005)
        assert float(told["Median (%)"]) == pytest.approx(100 * statistics.median(best[t.id] for t in drawn), abs=0.005)
        assert float(told["Best (%)"]) == pytest.approx(100 * max(best.values()), abs=0.005)
        assert told["Reach the target"] == f"{sum(best[t.id] >= 0.7 for t in drawn)} of 8"
    assert "Target: 70.0 %" in table.caption


@pytest.mark.slow
def test_trials_of_an_earlier_search_are_left_out_and_named(tmp_path: Path) -> None:
    every = set[str]()
    for seed in (0, 1):
        of = suite(studies=2, budget={"trials": 5}, seed=seed)
        own, found = to_the_end(of, tmp_path / f"{seed}", Machine())
        final = tuned_suite(of, found)
        store, trials = ResultStore(tmp_path, final.name), expand(final, device="cpu")
        own.outcome(found).write(store.directory)
        Machine()(final, trials, store)
        store.keep_suite(kept(final, trials))
        every |= {trial.id for trial in trials}
    inputs = load_inputs(store.directory)
    assert {trial for _, trial in inputs.records} == {trial.id for trial in trials} < every
    assert inputs.earlier == len(every) - len(trials)
    write_report(store.directory, tmp_path / "out", formats=("md",))
    assert (
        f"Of an earlier search of the settings: {inputs.earlier} trials" in (tmp_path / "out" / "report.md").read_text()
    )


@pytest.mark.slow
def test_the_picture_is_of_the_expected_best(tmp_path: Path) -> None:
    for sampler in ("random", "tpe"):
        view = tuned_view(tmp_path / sampler, machine := Machine(), sampler)
        picture = view.figure()
        assert picture is not None
        for variant in view.section.variants:
            data = picture.data[picture.data["series"] == variant.label].sort_values("trials")
            assert list(data["trials"]) == [1, 2, 3, 4]
            heights = list(data["best_validation_percent"])
            studies = [
                [100 * max(curve(t)[1]) for t in machine.ran
                 if (t.method.name, t.seed) == (variant.method, 10_000 + study) and t.train.lr != 0.01]
                for study in range(2)
            ]  # fmt: skip
            every = [score for own in studies for score in own]
            if sampler == "random":
                assert heights[0] == pytest.approx(statistics.fmean(every))
                assert heights == sorted(heights)
                assert heights[-1] < max(every)
            else:
                firsts = [max(own[:2]) for own in studies]
                assert heights[1] == pytest.approx(statistics.fmean(firsts))
                assert heights[-1] == pytest.approx(statistics.fmean(map(max, studies)))


def test_failed_trials_cost_and_count_as_nothing(tmp_path: Path) -> None:
    def fails(trial: object) -> bool:
        return trial.method.name == "full" and trial.train.lr != 0.01  # type: ignore[attr-defined]

    view = tuned_view(tmp_path, Machine(fails=fails))
    table = view.table()
    assert table is not None
    told = shown(table, "full")
    assert (told["Trials"], told["Median (%)"], told["Chosen settings"]) == ("10", "0.00", "the suite's own")


def test_changes_stand_next_to_what_was_chosen(tmp_path: Path) -> None:
    results = tuned_results(tmp_path, Machine(), target=0.7)
    tuning = read_tuning(results / TUNING_FILE)
    full = next(each for each in tuning.methods if each.method == "full")
    plain = {"study": 0, "number": 0, "trial": "a", "point": {}, "trained_s": 1.0, "wall_s": 1.0}
    changed = (
        ChangedTrial(change="settings of dgs", best_val=0.65, target_s=None, **plain),
        ChangedTrial(change="layers 3", best_val=0.9, target_s=1.25, **plain),
    )
    methods = [full.model_copy(update={"changed": changed}), *(m for m in tuning.methods if m is not full)]
    tuning.model_copy(update={"methods": tuple(methods)}).write(results)
    cross, size = TuningView(one_section(results)).details().values()
    assert cross is not None
    assert size is not None
    assert listed(cross) == listed(size) == ["full"]
    assert full.best is not None
    told = shown(cross, "full")
    assert told["To 70.0 % (s) settings of dgs"] == "not reached"
    assert told["To 70.0 % (s) chosen"] == significant(full.best.target_s or 0)
    assert told["Best validation (%) settings of dgs"] == "65.00"
    assert shown(size, "full")["To 70.0 % (s) layers 3"] == "1.25"


def test_results_that_were_not_tuned_have_no_such_view(tmp_path: Path) -> None:
    of = suite()
    Machine()(of, expand(of, device="cpu"), ResultStore(tmp_path, of.name))
    view = TuningView(one_section(tmp_path))
    assert view.table() is None
    assert view.figure() is None
