"""What is compared with what, under which name and colour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from report.fake import METHODS, Method, write_results
from report.measured import change

import harness
from harness.errors import UserError
from harness.report.columns import curve_of, epoch_sums
from harness.report.page import make_report
from harness.report.palette import COLOURS, variant_styles
from harness.report.sections import make_sections
from harness.report.variants import dataset_labels, find_variants
from harness.report.views.convergence import mean_curve
from harness.report.views.time import EpochTimeView
from harness.results.frames import load_epochs, load_inputs
from harness.results.record import Record
from harness.results.record_store import read_at, record_places
from harness.results.stats import show_value
from harness.runtime.method import METHODS as REGISTERED
from harness.tune.study import curve_of as searched_curve

OWN = {name: REGISTERED.load(name).colour for name in REGISTERED.names()}


def test_order_names_and_colours(results_dir: Path) -> None:
    real, twin = make_sections(load_inputs(results_dir))
    assert real.title == "digits · sage"
    assert twin.title == "twin [twin of reddit at scale 0.02] · sage"
    labels = [variant.label for variant in real.variants]
    assert labels == ["full", "bns-gcn (rate=0.01)", "bns-gcn (rate=0.1)", "graphsage"]
    assert real.variants == twin.variants  # one colour throughout
    assert real.variants[0].style.colour == COLOURS[0]


def test_a_data_set_is_called_by_what_tells_it_from_others() -> None:
    def of(name: str, **options: object) -> dict[str, object]:
        return {"dataset": name, **{f"dataset.options.{key}": value for key, value in options.items()}, "model": "sage"}

    twin = {"of": "reddit", "noise": 1.0}
    settings = [of("twin", **twin, scale=0.1), of("twin", of="yelp"), of("digits", threshold=2)]
    assert dataset_labels(settings) == ["reddit twin 0.1", "yelp twin", "digits"]
    both = [
        of("twin", **twin, scale=0.1),
        of("twin", **twin | {"noise": 2.0}, scale=0.1),
        of("twin", **twin, scale=0.2),
    ]
    assert dataset_labels(both) == ["reddit twin 0.1 (noise=1)", "reddit twin 0.1 (noise=2)", "reddit twin 0.2"]
    several = [of("sbm", nodes=100, split="random"), of("sbm", nodes=200, split="random"), of("sbm", seed=1)]
    assert dataset_labels(several) == ["sbm (nodes=100, split=random)", "sbm (nodes=200, split=random)", "sbm (seed=1)"]


def test_a_twin_has_a_short_name_in_headings_and_its_whole_one_in_the_notes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_results(
            tmp_path / name, suite=name, datasets=[("twin", "twin", "twin of reddit, scale 0.1")],
            methods=METHODS[3:], seeds=(0,), epochs=10,
        )  # fmt: skip
        options = {"of": "reddit", "scale": 0.1, "noise": 1.0 if name == "a" else 0.5}
        change(tmp_path / name, lambda record, own=options: record["config"]["dataset"].update(options=own))  # type: ignore[misc]
    inputs = load_inputs([tmp_path / "a", tmp_path / "b"])
    sections = make_sections(inputs)
    assert [section.title for section in sections] == [f"reddit twin 0.1 (noise={noise}) · sage" for noise in (0.5, 1)]
    assert ["of reddit, scale 0.1" in dict(section.facts)["dataset"] for section in sections] == [True, True]
    (note,) = (note.text for note in make_report(inputs).notes if note.lead == "Not the published data:")
    assert note.startswith("reddit twin 0.1 (noise=0.5) [twin of reddit, scale 0.1]; ")


def test_a_method_has_its_colour_in_every_report() -> None:
    alone = {method: variant_styles([method], OWN)[0].colour for method in OWN}
    assert set(alone.values()) <= set(COLOURS)
    assert len(set(alone.values())) == len(OWN)
    together = ["full", "bns-gcn", "bns-gcn", "bns-gcn", "graphsaint", "mine", "skewed", "skewed"]
    styles = variant_styles(together, OWN)
    assert len({s.colour for s in styles}) == len(styles)
    for method in ("full", "bns-gcn", "graphsaint", "skewed"):
        assert styles[together.index(method)].colour == alone[method]
    assert variant_styles(["mine"], OWN)[0].colour != alone["full"]


def declaring(row: Mapping[Any, Any]) -> Record:
    """The record of a row of a method that is shipped."""
    config = {"method": {"name": row["method"], "options": row["options"]}}
    return cast(Record, SimpleNamespace(config=config, declared=REGISTERED.load(row["method"]).declared()))


def test_what_a_preset_decides_is_not_said_beside_it() -> None:
    """But an option that differs from its preset is, of all variants."""
    options = REGISTERED.load("dgs").Options
    both = [options(explainer=name).model_dump() for name in ("harness", "gnnexplainer")]
    frame = pd.DataFrame({"method": "dgs", "options": both})
    assert [v.label for v in find_variants(frame, declaring).values()] == [
        "dgs (explainer=gnnexplainer)",
        "dgs (explainer=harness)",
    ]
    other = options(explainer="gnnexplainer", mask_lr=0.01).model_dump()
    frame = pd.DataFrame({"method": "dgs", "options": [*both, other]})
    assert [v.label for v in find_variants(frame, declaring).values()] == [
        "dgs (explainer=gnnexplainer, mask_lr=0.01)",
        "dgs (explainer=gnnexplainer, mask_lr=0.1)",
        "dgs (explainer=harness, mask_lr=0.05)",
    ]


def test_styles_are_told_apart_also_when_colours_run_out() -> None:
    styles = variant_styles(["full", *["bns-gcn"] * 5, "mine", *["roc"] * 33], OWN)
    assert len({s.colour for s in styles[:15]}) == 15
    assert len({(s.colour, s.dash) for s in styles}) == 40  # of bars, which have no marker
    assert len(variant_styles(["roc"] * 200, OWN)) == 200
    assert len({(s.marker, s.dash) for s in styles}) == 40  # without colours


def test_an_option_that_is_not_default_is_named_even_if_it_does_not_vary() -> None:
    frame = pd.DataFrame(
        {"method": ["bns-gcn", "full"], "options": [{"rate": 0.5, "sampler": "bernoulli"}, {"precompute": False}]}
    )
    assert [v.label for v in find_variants(frame, declaring).values()] == ["full", "bns-gcn (rate=0.5)"]


def test_of_many_options_only_those_are_named_that_tell_variants_apart() -> None:
    options = {"staleness": 2, "rate": 0.1, "refresh": 5, "capacity": 0.4, "cache": "degree"}
    both = [options, options | {"rate": 0.5}]
    frame = pd.DataFrame({"method": ["psc-gcn"] * 2, "options": both})
    found = list(find_variants(frame, declaring).values())
    assert [v.label for v in found] == ["psc-gcn (rate=0.1)", "psc-gcn (rate=0.5)"]
    assert {v.common for v in found} == {"cache=degree, capacity=0.4, refresh=5, staleness=2"}
    (alone,) = find_variants(frame[:1], declaring).values()
    assert alone.label == "psc-gcn (cache=degree, capacity=0.4, rate=0.1, refresh=5, staleness=2)"


def test_variants_are_in_the_order_of_numbers() -> None:
    options = [{"fanouts": [10, 5], "tau": 2}, {"fanouts": [9, 5], "tau": 1}, {"fanouts": 100, "tau": 1}]
    frame = pd.DataFrame({"method": "m", "options": [{"tau": 10, "fanouts": 5}, *options], "label": ""})
    assert [v.options for v in find_variants(frame).values()] == [
        *[{"fanouts": 5, "tau": 10}, {"fanouts": [9, 5], "tau": 1}, {"fanouts": [10, 5], "tau": 2}],
        {"fanouts": 100, "tau": 1},
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *[(True, "true"), (0.1, "0.1"), (1e-05, "1e-05"), ([25, 10], "[25,10]"), ("a", "a")],
        ({"propagation": "mean", "eps": 0.5}, "{propagation: mean, eps: 0.5}"),
    ],
)
def test_option_values(value: object, shown: str) -> None:
    assert show_value(value) == shown


def test_different_settings_are_never_averaged(tmp_path: Path) -> None:
    """Two partitioners and two lengths: three sections; one part is the same whatever the partitioner."""
    for partitioner in ("metis", "random"):
        parts = (1, 2) if partitioner == "metis" else (2,)
        write_results(tmp_path, methods=METHODS[3:], parts=parts, seeds=(0,), partitioner=partitioner)
    write_results(tmp_path, methods=METHODS[3:], parts=(2,), seeds=(0,), epochs=10)
    sections = {section.extra: section for section in make_sections(load_inputs(tmp_path))}
    assert {extra: section.parts for extra, section in sections.items()} == {
        "partitioner=metis, train.epochs=10": (2,),
        "partitioner=metis, train.epochs=30": (1, 2),
        "partitioner=random, train.epochs=30": (1, 2),
    }
    assert len({section.anchor for section in sections.values()}) == 3


def test_contents_of_one_name_stand_apart_each_with_all_its_numbers_of_parts(tmp_path: Path) -> None:
    """A partition has other fingerprints for other numbers of parts, and where training sees less."""

    def write(graph: str, split: str = "", parts: tuple[int, ...] = (1, 2, 4), **settings: Any) -> None:
        write_results(tmp_path, methods=METHODS[:1], parts=parts, seeds=(0,), **settings)
        for place in record_places(tmp_path):
            record = read_at(place)
            if record.partition_fingerprint is None:
                now = {"fingerprint": graph}, f"{graph}{split}{record.config['partition']}"
                new = {"dataset": record.dataset | now[0], "partition_fingerprint": now[1]}
                (place / "record.json").write_text(record.model_copy(update=new).to_json())

    def sections() -> dict[str, tuple[int, ...]]:
        return {section.extra: section.parts for section in make_sections(load_inputs(tmp_path))}

    write("v1")
    write("v1", "seen", train={"inductive": True})
    assert set(sections().values()) == {(1, 2, 4)}
    write("v2", settings={"data": "v2.p"})
    assert sorted(sections().values()) == [(1, 2, 4)] * 3
    write("v2", "anew", (2,), settings={"data": "v2.q"})
    assert sorted(sections().values()) == [(1, 2), (1, 2), (1, 2, 4), (1, 2, 4), (1, 4)]


def test_what_a_method_sets_itself_keeps_it_beside_the_others(tmp_path: Path) -> None:
    """One colour and one name on all data sets; two settings on one data set are two variants."""
    full: Method = ("full", {})
    sets = [("digits", "real", ""), ("other", "real", "")]

    def write(method: Method, dataset: tuple[str, str, str], lr: float) -> None:
        own = {} if lr == 0.01 else {"shared": {"train.lr": 0.01}}
        write_results(tmp_path, datasets=[dataset], methods=[method], parts=(2,), train={"lr": lr}, settings=own)

    for dataset, lr in zip(sets, (0.25, 0.5), strict=True):
        write(("graphsage", {}), dataset, 0.01)
        write(full, dataset, lr)
    sections = make_sections(load_inputs(tmp_path))
    assert [[v.label for v in section.variants] for section in sections] == [["full", "graphsage"]] * 2
    assert sections[0].variants == sections[1].variants
    assert [dict(section.facts).get("full sets itself") for section in sections] == ["train.lr 0.25", "train.lr 0.5"]
    assert not any("graphsage" in fact for section in sections for fact, _ in section.facts)
    write(full, sets[0], 0.75)
    section = make_sections(load_inputs(tmp_path))[0]
    assert [v.label for v in section.variants] == ["full (lr=0.25)", "full (lr=0.75)", "graphsage"]
    assert [len(section.select(v, 2)) for v in section.variants] == [3, 3, 3]
    assert len({v.style for v in section.variants}) == 3


def test_one_part_has_no_network_and_stands_beside_those_of_each(tmp_path: Path) -> None:
    full = METHODS[:1]
    write_results(tmp_path, methods=full, parts=(1,), seeds=(0,))
    for rate in ("100mbit", "1gbit"):
        write_results(tmp_path, methods=full, parts=(2,), seeds=(0,), settings={"network": rate})
    sections = {section.extra: section.parts for section in make_sections(load_inputs(tmp_path))}
    assert sections == {"network=100mbit": (1, 2), "network=1gbit": (1, 2)}


def test_sections_without_records_fall_back_on_the_frame(results_dir: Path) -> None:
    inputs = load_inputs(results_dir)
    inputs.records.clear()  # type: ignore[attr-defined]
    assert [len(section.frame) for section in make_sections(inputs)] == [24, 24]


def test_curves_sum_the_slowest_ranks_epochs(results_dir: Path) -> None:
    section = make_sections(load_inputs(results_dir))[0]
    variant = section.variants[1]
    trials = list(section.select(variant, 2)["trial"])
    epochs = load_epochs(results_dir)
    times, scores = [], []
    for trial in trials:
        rows = epochs[epochs["trial"] == trial].to_dict("records")
        longest = [max(r["epoch_time_s"] for r in rows if r["epoch"] == e) for e in range(30)]
        times.append([sum(longest[: e + 1]) for e in range(4, 30, 5)])
        scores.append([next(r["val_score"] for r in rows if r["epoch"] == e) for e in range(4, 30, 5)])
    curve = mean_curve(section, variant, 2)
    assert list(curve["epoch"]) == [5, 10, 15, 20, 25, 30]
    assert list(curve["time_s"]) == pytest.approx([sum(t) / 3 for t in zip(*times, strict=True)])
    assert list(curve["score"]) == pytest.approx([sum(s) / 3 for s in zip(*scores, strict=True)])
    assert list(curve["low"]) == [min(s) for s in zip(*scores, strict=True)]


def test_a_curve_without_a_time_has_no_time() -> None:
    epochs = pd.DataFrame({"epoch": [0, 1, 2], "epoch_time_s": [1.0, None, 1.0], "val_score": [0.1, None, 0.3]})
    curve = curve_of(epoch_sums(epochs))
    assert list(curve["epoch"]) == [1, 3]
    assert curve["time_s"].isna().tolist() == [False, True]


def test_curves_count_what_was_computed_before_the_first_epoch(tmp_path: Path) -> None:
    """Of the slowest rank; a search's curves do, too. Records of before have no such column."""
    rows = [
        {"epoch": epoch, "rank": rank, "epoch_time_s": 1.0 + rank, "precompute_s": before, "val_score": 0.1 * epoch}
        for rank, seconds in enumerate((0.5, 0.25))
        for epoch, before in enumerate((seconds, 0.0, 0.0))
    ]
    for columns, want in ([*rows[0]], [2.5, 4.5, 6.5]), ([key for key in rows[0] if key != "precompute_s"], [2, 4, 6]):
        epochs = pd.DataFrame(rows)[columns]
        assert list(curve_of(epoch_sums(epochs))["time_s"]) == want
        epochs.to_parquet(tmp_path / "epochs.parquet")
        assert list(searched_curve(tmp_path).seconds) == want


def test_a_model_that_is_not_the_suites_is_in_the_label_and_in_its_section(tmp_path: Path) -> None:
    """With the suite's for a section's title; what regularises is no other model."""
    methods = (("full", {}), ("sign", {"hops": 2}), ("bns-gcn", {"rate": 0.5}))
    write_results(tmp_path, methods=methods, parts=(2,), seeds=(0,), epochs=6)

    def own(record: dict[str, Any]) -> None:
        config = record["config"]
        if config["method"]["name"] == "sign":
            usual = {f"model.{key}": config["model"][key] for key in ("name", "layers", "options")}
            config |= {"shared": usual, "model": config["model"] | {"name": "mixhop", "layers": 1}}
        if config["method"]["name"] == "bns-gcn":
            config |= {"shared": {"model.dropout": config["model"]["dropout"]}}
            config["model"]["dropout"] = 0.1

    change(tmp_path, own)
    (section,) = make_sections(load_inputs(tmp_path))
    assert section.model == "sage"
    assert {variant.label for variant in section.variants} == {"full", "bns-gcn", "sign [model mixhop]"}
    facts = dict(section.facts)
    assert facts["sign [model mixhop] sets itself"].startswith("model.name mixhop, model.layers 1")


def test_no_results_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no finished trial.*harness run"):
        load_inputs(tmp_path)
    with pytest.raises(UserError, match="no such directory"):
        load_inputs(tmp_path / "absent")


def test_what_is_special_of_a_method_is_read_from_its_records(tmp_path: Path) -> None:
    """A method that is not installed is what others are compared with, because its records say so."""
    write_results(tmp_path, methods=(METHODS[0], ("zero", {"depth": 1})), parts=(2,), seeds=(0,), epochs=6)

    def declare(record: dict[str, Any]) -> None:
        if record["config"]["method"]["name"] == "zero":
            said = {"family": "full-graph", "baseline": {}, "colour": "#123456", "defaults": {"depth": 2}}
            record["declared"] |= said | {"numbers": []}

    change(tmp_path, declare)
    (section,) = make_sections(load_inputs(tmp_path))
    assert [variant.label for variant in section.variants] == ["zero (depth=1)", "bns-gcn"]
    assert section.baseline == section.variants[0]
    assert section.baseline.style.colour == "#123456"
    table = EpochTimeView(section).table()
    assert "Speed-up: mean epoch time of zero (depth=1) / that of the method" in table.caption
    assert section.select(section.baseline, 2)["asked_share"].tolist() == [1.0]


def test_the_baseline_of_mini_batches_is_compared_with_that_of_full_graphs(tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS[2:], parts=(2,), seeds=(0,), epochs=6)
    (section,) = make_sections(load_inputs(tmp_path))
    assert [(variant.method, variant.baseline) for variant in section.variants] == [("full", True), ("graphsage", True)]
    picture = EpochTimeView(section).figure()
    assert picture is not None
    assert "Below: mean throughput / that of full" in picture.caption


def test_no_method_is_asked_for_by_name() -> None:
    package = Path(harness.__file__).parent
    sources = [path for part in ("report", "results", "claims") for path in (package / part).rglob("*.py")]
    quoted = {f'"{name}"' for name in REGISTERED.names()}
    found = {(path.name, name) for path in sources for name in quoted if name in path.read_text()}
    assert not found
