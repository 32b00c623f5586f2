"""Methods over several data sets: performance profiles against the medians that each data set's own table shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from report.fake import METHODS, write_results
from report.measured import shown

from harness.report import write_report
from harness.report.page import make_report
from harness.report.sections import make_sections
from harness.report.sweeps import find_workloads
from harness.report.views.answer import AnswerView, ProfileView
from harness.results.frames import load_inputs

REAL = (("digits", "real", ""), ("cora", "real", ""), ("citeseer", "real", ""))
TWIN = (("reddit", "twin", "made in the likeness of reddit"), ("yelp", "twin", "made in the likeness of yelp"))


def profile(root: Path, **kinds: object) -> ProfileView:
    datasets = kinds.pop("datasets", REAL)
    write_results(root, methods=METHODS[1:], parts=(2,), datasets=datasets, train={"target": 0.8}, **kinds)  # type: ignore[arg-type]
    (found,) = find_workloads(make_sections(load_inputs(root)))
    return ProfileView(found)


def test_the_table_is_of_each_data_sets_medians(tmp_path: Path) -> None:
    view = profile(tmp_path)
    table = view.table()
    assert table is not None
    medians = {
        (section.dataset, variant.method): AnswerView(section).medians[variant, 2]
        for section in make_sections(load_inputs(tmp_path))
        for variant in section.variants
    }
    names = [name for name, _, _ in REAL]
    for method in ("bns-gcn", "graphsage", "full"):
        told = shown(table, method)
        ratios = []
        for name in names:
            own = medians[name, method]
            best = min(found.centre for (of, _), found in medians.items() if of == name and found)
            assert own is not None
            ratios.append(own.centre / best)
            assert float(told[f"Relative to the fastest's time {name}"]) == pytest.approx(ratios[-1], abs=0.005)
        scores = [(4 - min(ratio, 4)) / 3 for ratio in ratios]
        assert float(told["Score"]) == pytest.approx(sum(scores) / 3, abs=0.005)
        left = [(sum(scores) - score) / 2 for score in scores]
        assert told["Without one"] == f"{min(left):.2f} to {max(left):.2f}"


def test_the_line_counts_the_data_sets_within_tau(tmp_path: Path) -> None:
    view = profile(tmp_path)
    picture = view.figure()
    assert picture is not None
    for name, own in view.profiles.items():
        line = picture.data[picture.data["series"] == name].sort_values("tau")
        for tau in (1.0, 1.3, 2.0, 3.9):
            there = line[line["tau"] <= tau]["data_sets_percent"].max() if len(line) else 0.0
            expected = sum(1 for ratio in own.taus if ratio <= tau) / len(REAL)
            assert (there if there == there else 0.0) == pytest.approx(100 * expected)


def test_what_has_other_options_on_each_data_set_is_one_method(tmp_path: Path) -> None:
    for (name, origin, note), rate in zip(REAL, (0.1, 0.2, 0.3), strict=True):
        write_results(
            tmp_path, methods=[("bns-gcn", {"rate": rate}), METHODS[3]], parts=(2,), datasets=[(name, origin, note)],
            train={"target": 0.8},
        )  # fmt: skip
    (found,) = find_workloads(make_sections(load_inputs(tmp_path)))
    assert set(ProfileView(found).medians) == {"bns-gcn", "full"}


def test_several_variants_of_a_method_keep_their_labels(tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS, parts=(2,), datasets=REAL[:2], train={"target": 0.8})
    (found,) = find_workloads(make_sections(load_inputs(tmp_path)))
    names = set(ProfileView(found).medians)
    assert {"graphsage", "full"} < names
    assert sum(name.startswith("bns-gcn (") for name in names) == 2


def test_graphs_of_files_are_real_ones(tmp_path: Path) -> None:
    kinds = (*REAL[:1], ("cora", "file", "from cora.npz"))
    write_results(tmp_path, methods=METHODS[2:], parts=(2,), datasets=kinds, train={"target": 0.8})
    (found,) = find_workloads(make_sections(load_inputs(tmp_path)))
    assert sorted(each.dataset for each in found.sections) == ["cora", "digits"]
    assert found.section.badge == "from cora.npz"


def test_twins_and_real_data_share_no_ranking(tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS[2:], parts=(2,), datasets=(*REAL, *TWIN), train={"target": 0.8})
    found = find_workloads(make_sections(load_inputs(tmp_path)))
    assert sorted(sorted(each.dataset for each in own.sections) for own in found) == [
        ["citeseer", "cora", "digits"], ["reddit", "yelp"],
    ]  # fmt: skip
    assert [bool(own.section.badge) for own in found] == [False, True]


@pytest.mark.slow
def test_the_answer_stands_first_and_once(tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS[2:], parts=(2,), datasets=REAL, train={"target": 0.8})
    report = make_report(load_inputs(tmp_path))
    titles = [view.title for shown in report.answers for view in shown.views]
    assert titles == ["Over all data sets", *["Leaderboard"] * 3]
    assert not any(view.first for shown in report.shown for view in shown.views)
    page = write_report(tmp_path, tmp_path / "out", formats=("html", "md", "latex")).read_text()
    assert page.index('id="answer"') < page.index('id="summary"') < page.index('id="notes"')
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.index("## Answer") < text.index("Fastest to target over all data sets") < text.index("## Summary")
    assert text.count("### Fastest to target") == 3
    latex = (tmp_path / "out" / "latex" / "main.tex").read_text()
    assert latex.index("profile") < latex.index("-pareto}")


def test_one_data_set_has_no_profile(tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS[2:], parts=(2,), datasets=REAL[:1], train={"target": 0.8})
    assert find_workloads(make_sections(load_inputs(tmp_path))) == []


def test_each_data_set_has_a_derived_target_where_none_is_asked_for(tmp_path: Path) -> None:
    """`full` reaches another score on each, from which one point is taken."""
    write_results(tmp_path, methods=METHODS[2:], parts=(2,), datasets=REAL)
    sections = make_sections(load_inputs(tmp_path))
    (found,) = find_workloads(sections)
    best = [each.ok[each.ok["method"] == "full"]["best_val"].mean() for each in sections]
    assert [each.target for each in found.sections] == pytest.approx([score - 0.01 for score in best], abs=0.001)
    view = ProfileView(found)
    table = view.table()
    assert table is not None
    for section in sections:
        medians = {v.method: own.centre for (v, _), own in AnswerView(section).medians.items() if own}
        told = shown(table, "full")[f"Relative to the fastest's time {section.dataset}"]
        assert float(told) == pytest.approx(medians["full"] / min(medians.values()), abs=0.005)


def test_of_two_evaluations_there_is_no_target_and_no_profile(tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS[2:], parts=(2,), datasets=REAL, epochs=10)
    assert find_workloads(make_sections(load_inputs(tmp_path))) == []


def test_two_models_of_each_data_set_are_four_workloads(tmp_path: Path) -> None:
    for model in ("sage", "gcn"):
        write_results(tmp_path, methods=METHODS[2:], parts=(2,), datasets=REAL[:2], model=model)
    (found,) = find_workloads(make_sections(load_inputs(tmp_path)))
    table = ProfileView(found).table()
    assert table is not None
    heads = [head.removeprefix("Relative to the fastest's time ") for head in table.columns[2:]]
    assert sorted(heads) == ["cora · gcn", "cora · sage", "digits · gcn", "digits · sage"]


def test_two_models_of_one_data_set_are_no_two_data_sets(tmp_path: Path) -> None:
    for model in ("sage", "gcn"):
        write_results(tmp_path, methods=METHODS[2:], parts=(2,), datasets=REAL[:1], model=model)
    assert find_workloads(make_sections(load_inputs(tmp_path))) == []
