from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.usefixtures("world")


def suite(**sections: Any) -> Suite:
    return Suite.model_validate({"name": "s", "datasets": ["digits"], "methods": ["full"], **sections})


def complaint(**sections: Any) -> str:
    with pytest.raises(UserError) as error:
        expand(suite(**sections))
    return str(error.value)


def test_the_grid_in_order() -> None:
    trials = expand(
        suite(
            datasets=["digits", {"twin": {"scale": [0.5, 0.25]}}],
            model=[{"name": "gcn"}, {"name": "sage"}],
            partition={"parts": [1, 2], "method": ["random", "metis"]},
            methods=["full", {"bns-gcn": {"rate": [0.5, 0.1]}}],
            seeds=[7, 3],
            device="cpu",
        )
    )
    got = [
        (
            t.dataset.options.get("scale"),
            t.model.name,
            t.partition.method,
            t.partition.parts,
            t.method.options.get("rate"),
            t.seed,
        )
        for t in trials
    ]
    grid = itertools.product([None, 0.5, 0.25], ["gcn", "sage"], ["random", "metis"], [1, 2], [None, 0.5, 0.1])
    of_each_seed = list(grid)
    assert got == [(*keys, 7) for keys in of_each_seed] + [(*keys, 3) for keys in reversed(of_each_seed)]


def test_training_is_a_grid_that_labels_and_claims_tell_apart() -> None:
    claim = {
        "name": "two threads are faster",
        "source": "ours",
        "metric": "epoch_time_s",
        "of": {"train.threads": 2},
        "over": {"train.threads": 1},
        "expect": {"at_most": 1},
    }
    written = {"threads": [1, 2, 1], "epochs": 3, "lr": [0.1]}
    trials = expand(suite(train=written, claims=[claim], exclude=[{"train.threads": 2, "parts": 2}],
                          partition={"parts": [1, 2]}, device="cpu"))  # fmt: skip
    assert [(t.train.threads, t.partition.parts) for t in trials] == [(1, 1), (1, 2), (2, 1)]
    assert [t.label.split(" full ")[1] for t in trials] == [
        *["P=1 threads=1 seed=0", "P=2 threads=1 seed=0", "P=1 threads=2 seed=0"]
    ]
    alone = expand(suite(train={"threads": 2, "epochs": 3, "lr": 0.1}, device="cpu"))
    assert [t.id for t in alone] == [trials[-1].id]  # what else the suite has is no part of a trial
    assert "threads" not in alone[0].label
    assert "varied" not in trials[0].model_dump()


def test_options_and_defaults_are_complete() -> None:
    sections = {"datasets": ["digits", {"twin": {"scale": 1}}], "methods": [{"bns-gcn": {"rate": 1}}], "device": "cpu"}
    digits, twin = expand(suite(**sections))
    assert digits.method.options == {"rate": 1.0, "sampler": "bernoulli", "precompute": False}
    assert twin.dataset.options == {"of": "reddit", "scale": 1.0}
    assert isinstance(twin.dataset.options["scale"], float)
    assert (digits.train.inductive, twin.train.inductive) == (False, True)
    assert all(t.train.inductive for t in expand(suite(train={"inductive": True}, **sections)))


def test_list_typed_options_are_values_and_lists_of_lists_are_grids() -> None:
    trials = expand(
        suite(
            methods=[
                {"graphsage": {"fanouts": [10, 5], "batch_size": [0, 8]}},
                {"graphsage": {"fanouts": [[15, 5], 4]}},
            ]
        )
    )
    assert [(t.method.options["fanouts"], t.method.options["batch_size"]) for t in trials] == [
        ([10, 5], 0),
        ([10, 5], 8),
        ([15, 5], 1024),
        (4, 1024),
    ]


def test_duplicates_are_merged() -> None:
    assert (
        len(expand(suite(methods=["full", {"full": {"transform_before_exchange": [False, True]}}], seeds=[0, 0]))) == 2
    )
    grid = {"method": ["random", "metis"], "objective": ["cut", "volume"], "parts": 2}
    assert len(expand(suite(partition=grid))) == 3  # `random` reads no objective
    whole = expand(suite(partition=grid | {"parts": 1}))
    assert [(t.partition.method, t.partition.objective) for t in whole] == [("random", "cut"), ("metis", "cut")]


def test_exclude() -> None:
    sections: dict[str, Any] = {"methods": ["full", {"bns-gcn": {"rate": [0.1, 0.5]}}], "partition": {"parts": [1, 2]}}
    trials = expand(
        suite(**sections, exclude=[{"rate": 0.5, "parts": 1}, {"method": ["full", "graphsage"], "parts": 2}])
    )
    assert [(t.method.name, t.partition.parts, t.method.options.get("rate")) for t in trials] == [
        ("full", 1, None),
        ("bns-gcn", 1, 0.1),
        ("bns-gcn", 2, 0.1),
        ("bns-gcn", 2, 0.5),
    ]
    assert expand(suite(**sections, exclude=[{"dataset": "digits"}])) == []


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"datasets": ["digit"]}, "datasets.0: unknown data set 'digit' (did you mean 'digits'?)"),
        ({"datasets": [{"twin": {"scal": 1}}]},
         "datasets.0.twin.scal: unknown option 'scal' (did you mean 'scale'?)"),
        ({"datasets": [{"twin": {"of": 3}}]}, "datasets.0.twin.of: bad value 3: must be text"),
        ({"datasets": [{"twin": {"scale": float("nan")}}]},
         "datasets.0.twin.scale: bad value nan: must be finite"),
        ({"methods": ["ful"]}, "methods.0: unknown method 'ful' (did you mean 'full'?)"),
        ({"methods": ["full", {"bns-gcn": {"rat": 1}}]},
         "methods.1.bns-gcn.rat: unknown key (did you mean 'rate'?)"),
        ({"methods": [{"bns-gcn": {"rate": [0.1, 2]}}]},
         "methods.0.bns-gcn.rate: bad value 2: must be less than or equal to 1"),
        ({"methods": [{"bns-gcn": {"sampler": "fixd"}}]},
         "methods.0.bns-gcn.sampler: bad value 'fixd', allowed: bernoulli, fixed (did you mean 'fixed'?)"),
        ({"methods": [{"graphsage": {"fanouts": "all"}}]},
         "methods.0.graphsage.fanouts: bad value 'all': must be a valid integer, unable to parse "
         "string as an integer or must be a list"),
        ({"train": {"optimizer": "adma"}},
         "train.optimizer: unknown optimizer 'adma' (did you mean 'adam'?)"),
        ({"train": {"schedule": {"steps": {"evry": 3}}}},
         "train.schedule.steps.evry: unknown key (did you mean 'every'?)"),
        ({"model": [{"hidden": 8}, {"name": ["gcn", "transformer"]}]},
         "model.name: unknown model 'transformer' (known: gat, gcn, mixhop, sage)"),
        ({"model": {"name": {"gcn": {"eps": 1}}}}, "model.name.gcn.eps: unknown key (it takes no options)"),
        ({"partition": {"method": "metsi"}},
         "partition.method: unknown partitioner 'metsi' (did you mean 'metis'?)"),
        ({"partition": {"method": "file"}},
         "partition.file: missing: method `file` reads the part of each node from a .npy file "
         "(add `file: NAME.npy`)"),
        ({"datasets": ["digits", {"twin": {"of": ["youtube", "reddit"]}}], "train": {"pos_weight": 50}},
         "train.pos_weight: bad value 50: the nodes of 'digits' have one label each, its loss no positive "
         "term (remove it, or give it to the multi-label sets by per_dataset)\n"
         "train.pos_weight: bad value 50: the nodes of 'twin' have one label each, its loss no positive "
         "term (remove it, or give it to the multi-label sets by per_dataset)"),
        ({"exclude": [{"mehtod": "full"}]}, "exclude.0.mehtod: unknown key (did you mean 'method'?)"),
        ({"exclude": [{}]}, "exclude.0: excludes everything (name what to exclude)"),
        ({"datasets": ["digit"], "methods": ["ful"]},
         "datasets.0: unknown data set 'digit' (did you mean 'digits'?)\n"
         "methods.0: unknown method 'ful' (did you mean 'full'?)"),
    ],
)  # fmt: skip
def test_mistakes_golden(sections: dict[str, Any], message: str) -> None:
    assert complaint(**sections) == message


def test_mistakes_in_a_file_name_the_line_and_in_an_override_the_override(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ndatasets: digits\nmethods:\n  - full\n  - bns-gcn:\n      rate: 2\n")
    with pytest.raises(UserError) as error:
        expand(load_suite(path))
    assert str(error.value) == f"{path}:6: methods.1.bns-gcn.rate: bad value 2: must be less than or equal to 1"
    for override, message in [
        ("methods.1.bns-gcn.rate=-1", "bad value -1: must be greater than or equal to 0"),
        ("datasets=digit", "datasets.0: unknown data set 'digit' (did you mean 'digits'?)"),
    ]:
        with pytest.raises(UserError) as error:
            expand(load_suite(path, [override, *(["methods=full"] if "datasets" in override else [])]))
        assert str(error.value) == f"--set {override}: {message}"


def test_a_partition_file_is_found_beside_the_suite_then_in_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, data, env = (tmp_path / name for name in ("suites", "data", "env"))
    for directory in (beside, data, env):
        directory.mkdir()
    path = beside / "s.yaml"
    path.write_text("name: s\ndatasets: digits\nmethods: full\npartition: {method: file, file: p.npy, parts: 2}\n")
    monkeypatch.setenv("HARNESS_DATA", str(env))
    seen = []
    for there in (None, env, data, beside):
        if there:
            (there / "p.npy").touch()
        [trial] = expand(load_suite(path), data_dir=data if there != env else None)
        seen.append((trial.partition.file, trial.id))
    assert [file for file, _ in seen] == [Path("p.npy"), env / "p.npy", data / "p.npy", beside / "p.npy"]
    assert len({id_ for _, id_ in seen}) == 1


def test_two_partition_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    grid = {"method": "file", "file": ["a/p.npy", "b/p.npy"], "parts": 2}
    assert complaint(partition=grid) == "partition.file: two partition files are named 'p.npy' (rename one)"


def test_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, resolved in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert [expand(suite(), device=d)[0].device for d in (None, "auto", "cpu", "cuda")] == [
            resolved,
            resolved,
            "cpu",
            "cuda",
        ]
    with pytest.raises(UserError, match="bad value 'tpu', allowed: auto, cpu, cuda"):
        expand(suite(), device="tpu")


def some(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, min_size=1, max_size=2)


SECTIONS = st.fixed_dictionaries(
    {
        "datasets": st.lists(
            st.one_of(
                st.just("digits"),
                st.fixed_dictionaries(
                    {"twin": st.fixed_dictionaries({"scale": some(st.sampled_from([1, 1.0, 0.5]))})}
                ),
            ),
            min_size=1,
            max_size=3,
        ),
        "model": st.fixed_dictionaries(
            {"hidden": some(st.integers(1, 3)), "layers": st.integers(1, 2)}
        ),
        "partition": st.fixed_dictionaries(
            {
                "parts": some(st.integers(1, 3)),
                "method": some(st.sampled_from(["metis", "random", "chunk"])),
                "objective": st.sampled_from(["cut", "volume"]),
            }
        ),
        "methods": st.lists(
            st.one_of(
                st.just("full"),
                st.fixed_dictionaries(
                    {
                        "bns-gcn": st.fixed_dictionaries(
                            {
                                "rate": some(st.sampled_from([0, 0.1, 1])),
                                "precompute": st.booleans(),
                            }
                        )
                    }
                ),
                st.fixed_dictionaries(
                    {"graphsage": st.fixed_dictionaries({"fanouts": some(st.integers(1, 3))})}
                ),
            ),
            min_size=1,
            max_size=3,
        ),
        "seeds": some(st.integers(0, 3)),
    }
)  # fmt: skip


def shuffled(value: Any, rng: random.Random, lists: bool) -> Any:
    """Reorder the keys of every mapping, and with `lists` also the items of the suite's own lists."""
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {k: v if k == "fanouts" else shuffled(v, rng, lists) for k, v in items}
    if isinstance(value, list):
        done = [shuffled(v, rng, lists) for v in value]
        if lists:
            rng.shuffle(done)
        return done
    return value


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sections=SECTIONS, rng=st.randoms(use_true_random=False))
def test_ids_do_not_depend_on_order_and_no_trial_is_twice(sections: dict[str, Any], rng: random.Random) -> None:
    ids = [t.id for t in expand(suite(**sections, device="cpu"))]
    assert ids
    assert len(set(ids)) == len(ids)
    assert [t.id for t in expand(suite(**shuffled(sections, rng, False), device="cpu"))] == ids
    assert {t.id for t in expand(suite(**shuffled(sections, rng, True), device="cpu"))} == set(ids)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sections=SECTIONS)
def test_a_trial_survives_its_own_json(sections: dict[str, Any]) -> None:
    for trial in expand(suite(**sections, device="cpu"))[:5]:
        again = TrialConfig.model_validate_json(trial.model_dump_json())
        assert (again, again.id) == (trial, trial.id)
