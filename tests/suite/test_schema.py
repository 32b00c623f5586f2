from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness.models.layer import ModelSpec
from harness.runtime.run_config import MethodSpec, TrainSpec
from harness.spec import DatasetSpec, PartitionSpec, PluginSource
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig

pytestmark = pytest.mark.usefixtures("world")


def suite(**sections: Any) -> Suite:
    return Suite.model_validate({"name": "s", "datasets": ["digits"], "methods": ["full"], **sections})


GOLDEN = TrialConfig(
    dataset=DatasetSpec(name="twin", options={"of": "reddit", "scale": 0.02}),
    model=ModelSpec(name="sage", layers=4, hidden=256, norm="layer"),
    train=TrainSpec(epochs=1500, lr=0.01, inductive=True),
    partition=PartitionSpec(parts=8, objective="volume"),
    method=MethodSpec(name="bns-gcn", options={"rate": 0.1, "sampler": "bernoulli", "precompute": False}),
    seed=0,
    device="cpu",
)


def test_a_trial_keeps_its_id() -> None:
    """A change here makes every user's finished trials run again: only for a change of what a trial is."""
    assert GOLDEN.id == "d936c738f053"
    of = {
        (parts, method, objective): GOLDEN.model_copy(
            update={"partition": PartitionSpec(parts=parts, method=method, objective=objective)}
        ).id
        for parts, method in ((8, "metis"), (1, "metis"), (8, "random"))
        for objective in ("cut", "volume")
    }
    assert of[8, "metis", "cut"] != of[8, "metis", "volume"] == GOLDEN.id
    assert of[1, "metis", "cut"] == of[1, "metis", "volume"] == "d8bf7bdbe942"
    assert of[8, "random", "cut"] == of[8, "random", "volume"] == "1f413fb30043"


def test_an_id_hashes_the_canonical_json_without_later_keys_at_their_default() -> None:
    config = json.loads(GOLDEN.model_dump_json()) | {"network": "none"}
    assert (config.pop("timing"), config.pop("traffic"), config.pop("repeat")) == ("plain", "count", 0)
    assert (config.pop("plugin"), config.pop("plugins")) == (None, {})
    for section in ("model", "partition"):
        assert config[section].pop("options") == {}
    assert (config["train"].pop("schedule"), config["train"].pop("schedule_options")) == ("constant", {})
    assert config["train"].pop("optimizer_options") == {}
    assert (config["train"].pop("pos_weight"), config["train"].pop("sampled_eval")) == (1, False)
    assert (config["train"].pop("products"), config.pop("data")) == ("auto", None)
    assert config["train"].pop("final_eval") is True
    assert config["partition"].pop("order") == "none"
    assert config["train"].pop("cores") is None
    assert (config["train"].pop("clip"), config["train"].pop("lr_warmup"), config.pop("shared")) == (None, 0, {})
    assert (config["train"].pop("seconds"), config.pop("tuning")) == (None, None)
    assert config["train"].pop("checkpoint") == "10 min"
    assert (config["model"].pop("heads"), config["model"].pop("order")) == (4, 2)
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    assert GOLDEN.id == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_checkpoints_are_no_part_of_an_id() -> None:
    train = GOLDEN.train.model_copy(update={"checkpoint": "5 epochs"})
    assert GOLDEN.model_copy(update={"train": train}).id == GOLDEN.id


def test_the_code_of_a_plugin_is_no_part_of_an_id() -> None:
    source = PluginSource(file=Path("/a/mine.py"), module=None, cls="Mine", sha256="0" * 64)
    assert GOLDEN.model_copy(update={"plugin": source}).id == GOLDEN.id
    assert GOLDEN.model_copy(update={"plugins": {"model": source}}).id == GOLDEN.id


def test_an_option_of_a_data_set_that_came_later() -> None:
    cora = GOLDEN.model_copy(update={"dataset": DatasetSpec(name="cora", options={"normalize": "row"})})
    split = {
        choice: cora.model_copy(
            update={"dataset": DatasetSpec(name="cora", options={"normalize": "row", "split": choice})}
        )
        for choice in ("public", "full")
    }
    assert split["public"].id == cora.id != split["full"].id


def test_an_id_depends_on_each_setting_and_on_nothing_else() -> None:
    base = {"datasets": ["digits"], "device": "cpu"}
    [trial] = expand(suite(**base))
    same = [suite(**base, description="x", timeouts={"trial_s": 5}), suite(**base, train={"lr": 0.01})]
    assert {t.id for s in same for t in expand(s)} == {trial.id}
    others = [
        suite(**{**base, "datasets": [{"digits": {"normalize": "row"}}]}),
        suite(**base, model={"hidden": 65}),
        suite(**base, train={"epochs": 101}),
        suite(**base, train={"sampled_eval": True}),
        suite(**base, train={"products": "transform-first"}),
        suite(**base, partition={"parts": 2}),
        suite(**{**base, "methods": [{"full": {"transform_before_exchange": True}}]}),
        suite(**base, seeds=[1]),
        suite(**{**base, "device": "cuda"}),
        suite(**base, timing="breakdown"),
        suite(**base, traffic="verify"),
        suite(**base, partition={"parts": 2}, network="1gbit"),
        suite(**base, partition={"parts": 2}, network={"rate": "1gbit", "latency": "1ms"}),
    ]
    ids = [t.id for s in others for t in expand(s)]
    assert len({trial.id, *ids}) == 1 + len(others)


def test_labels_say_what_differs_from_the_defaults() -> None:
    trials = expand(
        suite(
            datasets=["digits", {"twin": {"scale": 0.01}}],
            methods=["full", {"bns-gcn": {"rate": [0.1, 0.5, 1], "precompute": True}}],
            partition=[{"parts": 2}, {"parts": 4, "method": "random", "seed": 3}],
            device="cpu",
        )
    )
    labels = [t.label for t in trials]
    assert labels[:6] == [
        "digits sage-2x64 full P=2 seed=0",
        "digits sage-2x64 bns-gcn(rate=0.1,precompute=true) P=2 seed=0",
        "digits sage-2x64 bns-gcn(rate=0.5,precompute=true) P=2 seed=0",
        "digits sage-2x64 bns-gcn(rate=1,precompute=true) P=2 seed=0",
        "digits sage-2x64 full P=4 random(seed=3) seed=0",
        "digits sage-2x64 bns-gcn(rate=0.1,precompute=true) P=4 random(seed=3) seed=0",
    ]
    assert labels[8] == "twin(scale=0.01) sage-2x64 full P=2 seed=0"
    assert len(set(labels)) == len(labels)


def test_a_label_leaves_out_a_number_that_says_little_at_its_default() -> None:
    labels = [t.label for t in expand(suite(methods=[{"graphsage": {"prefetch": [0, 2]}}], device="cpu"))]
    assert [label.split()[2] for label in labels] == [
        "graphsage(fanouts=10,batch_size=1024)",
        "graphsage(fanouts=10,batch_size=1024,prefetch=2)",
    ]


def test_a_label_of_what_is_not_installed_says_all() -> None:
    strange = GOLDEN.model_copy(update={"method": MethodSpec(name="lost", options={"a": 1.0, "b": [1, 2]})})
    assert strange.label == "twin(scale=0.02) sage-4x256 lost(a=1,b=[1,2]) P=8 metis(objective=volume) seed=0"


def test_a_network_joins_the_trials_that_have_hosts_to_join() -> None:
    trials = expand(
        suite(
            partition={"parts": [1, 2, 4]},
            network=["none", {"rate": ["1000mbit", "100mbit"], "ranks_per_host": 2}, "1gbit"],
            device="cpu",
        )
    )
    found = [(t.partition.parts, t.network.label if t.network else None) for t in trials]
    assert found == [
        (1, None),
        *[(2, None), (2, "1gbit")],
        *[(4, None), (4, "1gbit, 2 ranks a host"), (4, "100mbit, 2 ranks a host"), (4, "1gbit")],
    ]
    assert trials[2].label == "digits sage-2x64 full P=2 1gbit seed=0"


@pytest.mark.parametrize("key", ["model\u2028", "lr", "train.rate", "method.name", "model.hidden.x"])
def test_what_suites_others_have_is_of_model_or_train(key: str) -> None:
    """A stranger's `suite.json` may say anything."""
    config = json.loads(GOLDEN.model_dump_json())
    others = {"model.hidden": 64, "train.epochs": 3}
    model, train = TrialConfig.model_validate(config | {"shared": others}).workload
    assert (model.hidden, train.epochs) == (64, 3)
    with pytest.raises(ValueError, match="is no key of model or train") as refused:
        TrialConfig.model_validate(config | {"shared": others | {key: 8}})
    assert repr(key) in str(refused.value)
