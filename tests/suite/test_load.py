from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.models.layer import ModelSpec
from harness.spec import DatasetSpec, PartitionSpec
from harness.suite.schema import MethodSpec, Suite
from harness.suite.suite_file import load_suite

PLAIN = """\
name: demo
datasets: [digits]
methods: [full]
"""
RICH = """\
name: demo
datasets:
  - digits
  - twin: {of: reddit, scale: [0.1, 0.2]}
model:
  - {name: gcn, hidden: [16, 64]}
  - name: sage
train:
  epochs: 30
partition:
  parts: [1, 2]
  method: metis
methods:
  - full
  - bns-gcn: {rate: [0.1, 1.0]}
seeds: [0, 1]
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        Path("s.yaml").write_text(text, encoding="utf-8")
        return Path("s.yaml")

    return write


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        load_suite(path, overrides)
    return str(error.value)


def test_a_short_suite_has_defaults(write) -> None:
    same = Suite(name="demo", datasets=(DatasetSpec(name="digits"),), methods=(MethodSpec(name="full"),))
    assert load_suite(write(PLAIN)).model_dump() == same.model_dump()


def test_every_form_of_an_entry(write) -> None:
    suite = load_suite(write(RICH))
    assert suite.datasets[1] == DatasetSpec(name="twin", options={"of": "reddit", "scale": [0.1, 0.2]})
    assert suite.model == (ModelSpec(name="gcn", hidden=16), ModelSpec(name="gcn", hidden=64), ModelSpec(name="sage"))
    assert suite.partition == (PartitionSpec(parts=1), PartitionSpec(parts=2))
    assert suite.methods[1] == MethodSpec(name="bns-gcn", options={"rate": [0.1, 1.0]})
    bare = load_suite(write("name: demo\ndatasets: digits\nmethods: {full: }\ntrain:\nplugins:\n"))
    assert bare.model_dump() == load_suite(write(PLAIN)).model_dump()


def test_a_suite_survives_its_own_json(write) -> None:
    suite = load_suite(write(RICH))
    assert Suite.model_validate_json(suite.model_dump_json()).model_dump() == suite.model_dump()


def test_the_directory_is_that_of_the_file(write, tmp_path: Path) -> None:
    assert load_suite(write(PLAIN)).directory == tmp_path
    assert Suite(name="x", datasets=("digits",), methods=("full",)).directory is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAIN + "train:\n  epcohs: 3\n", "s.yaml:5: train.epcohs: unknown key (did you mean 'epochs'?)"),
        (PLAIN + "model: {hiden: 3}\n", "s.yaml:4: model.hiden: unknown key (did you mean 'hidden'?)"),
        (PLAIN + "partitions: 3\n", "s.yaml:4: partitions: unknown key (did you mean 'partition'?)"),
        (PLAIN + "train: {zzz: 1}\n", "s.yaml:4: train.zzz: unknown key (known: checkpoint, checksum_every, clip, "
         "cores, cuda_graphs, epochs, eval_every, eval_memory, "
         "evaluation_mib, final_eval, inductive, lr, lr_warmup, optimizer, "
         "optimizer_options, patience, pos_weight, precision, products, sampled_eval, schedule, schedule_options, "
         "seconds, spmm, stop_at_target, target, threads, warmup, weight_decay)"),
        (PLAIN + "model:\n  name: 3\n", "s.yaml:5: model.name: bad value 3: must be a valid string"),
        (PLAIN + "model:\n  name: {gat: 3}\n",
         "s.yaml:4: model: name: write the options of gat as `{gat: {option: value}}`"),
        (PLAIN + "train: {epochs: 0}\n",
         "s.yaml:4: train.epochs: bad value 0: must be greater than or equal to 1"),
        (PLAIN + "train: {epochs: ten}\n",
         "s.yaml:4: train.epochs: bad value 'ten': must be a valid integer, unable to parse string as an "
         "integer"),
        (PLAIN + "train: {epochs: true}\n", "s.yaml:4: train.epochs: must be a number"),
        (PLAIN + "train: {lr: .inf}\n", "s.yaml:4: train.lr: bad value '.inf': must be a finite number"),
        (PLAIN + "train: 3\n", "s.yaml:4: train: bad value 3: must be a section of `key: value` lines "
         "(write `train: {epochs: 3}`)"),
        (PLAIN + "train: {epochs: [1, two]}\n",
         "s.yaml:4: train.epochs: bad value 'two': must be a valid integer, unable to parse string as an "
         "integer"),
        (PLAIN + "partition:\n  parts: [1, 0]\n",
         "s.yaml:5: partition.parts: bad value 0: must be greater than or equal to 1"),
        (PLAIN + "seeds: 3\n", "s.yaml:4: seeds: bad value 3: must be a list (write `seeds: [0, 1, 2]`)"),
        (PLAIN + "seeds: 4242\n", "s.yaml:4: seeds: bad value 4242: must be a list (write `seeds: [4242]`)"),
        (PLAIN + "model: sage\n", "s.yaml:4: model: bad value 'sage': must be a section of `key: value` lines "
         "(write `model: {name: sage}`)"),
        (PLAIN + "epochs: 10\n", "s.yaml:4: epochs: unknown key (write `train: {epochs: 10}`)"),
        (PLAIN + "lr: 1e-2\n", "s.yaml:4: lr: unknown key (write `train: {lr: 0.01}`)"),
        (PLAIN + "layer: 3\n", "s.yaml:4: layer: unknown key (write `model: {layers: 3}`)"),
        (PLAIN + "target: 95\n", "s.yaml:4: target: unknown key (write `train: {target: 0.95}`)"),
        (PLAIN + "train: {target: 95}\n", "s.yaml:4: train.target: bad value 95: must be less than or equal to 1 "
         "(write `train: {target: 0.95}`)"),
        (PLAIN + "train: {target: 950}\n",
         "s.yaml:4: train.target: bad value 950: must be less than or equal to 1"),
        (PLAIN + "train: {parts: [1, 2]}\n",
         "s.yaml:4: train.parts: unknown key (write `partition: {parts: [1, 2]}`)"),
        (PLAIN + "model: {seeds: 2}\n", "s.yaml:4: model.seeds: unknown key (write `seeds: [0, 1]`)"),
        (PLAIN + "claims: [{name: a, source: b, metric: eval_s, of: {parts: 1}, expect: {at_most: 1}, order: 1}]\n",
         "s.yaml:4: claims.0.order: unknown key (did you mean 'over'?)"),
        (PLAIN + "seeds: []\n", "s.yaml:4: seeds: bad value []: must not be empty"),
        (PLAIN + "network: {rate: [1gbit, fast]}\n",
         "s.yaml:4: network.rate: 'fast' is not understood: write a rate as 100mbit, 1gbit or unlimited"),
        (PLAIN + "network: 1gb\n",
         "s.yaml:4: network: '1gb' is not understood: write a rate as 100mbit, 1gbit or unlimited"),
        (PLAIN + "network:\n  - none\n  - {rat: 1gbit}\n",
         "s.yaml:6: network.1.rat: unknown key (did you mean 'rate'?)"),
        (PLAIN + "timing: brakdown\n",
         "s.yaml:4: timing: bad value 'brakdown', allowed: plain, breakdown, wall, off "
         "(did you mean 'breakdown'?)"),
        (PLAIN + "partition: {parts: []}\n", "s.yaml:4: partition: bad value []: must not be empty"),
        (PLAIN + "seeds: [0, -1]\n", "s.yaml:4: seeds.1: bad value -1: must be greater than or equal to 0"),
        (PLAIN + "device: gqu\n", "s.yaml:4: device: bad value 'gqu', allowed: auto, cpu, cuda"),
        (PLAIN + "timeouts: {trial: 3}\n", "s.yaml:4: timeouts.trial: unknown key (did you mean 'trial_s'?)"),
        (PLAIN + "exclude: [full]\n",
         "s.yaml:4: exclude.0: bad value 'full': must be a section of `key: value` lines"),
        (PLAIN + "name: x\n", "s.yaml:4: name: duplicate key, first on line 1 (keep one of them)"),
        ("name: ../x\ndatasets: [a]\nmethods: [b]\n", "s.yaml:1: name: bad value '../x': must be letters, "
         "digits, '.', '_' or '-', a letter or digit first"),
        ("name: x\nmethods: [full]\n", "s.yaml: datasets: missing (add `datasets: ...`)"),
        ("name: x\nmethods: [full]\ndatasets:\n", "s.yaml:3: datasets: missing (add `datasets: ...`)"),
        ("name: x\ndatasets: [a]\nmethods: []\n", "s.yaml:3: methods: bad value []: must not be empty"),
        ("name: x\ndatasets: [a]\nmethods:\n  - full:\n    bns-gcn:\n",
         "s.yaml:4: methods.0: write one name per entry: `- name` or `- name: {option: value}`"),
        ("name: x\ndatasets: [a]\nmethods:\n  - full\n  - bns-gcn: 0.1\n",
         "s.yaml:5: methods.1: write the options of bns-gcn as `bns-gcn: {option: value}`"),
        ("name: x\ndatasets: [3]\nmethods: [full]\n",
         "s.yaml:2: datasets.0: bad value 3: must be a section of `key: value` lines"),
        ("- a\n", "s.yaml: not a suite (write `name: ...`, `datasets: [...]`, `methods: [...]` lines)"),
        ("", "s.yaml: not a suite (write `name: ...`, `datasets: [...]`, `methods: [...]` lines)"),
        ("a: [", "s.yaml:1: while parsing a flow node, expected the node content, but found '<stream end>'"),
    ],
)  # fmt: skip
def test_mistakes_golden(write, text: str, message: str) -> None:
    assert complaint(write(text)) == message


def test_several_mistakes_are_several_lines_in_the_order_of_the_file(write) -> None:
    text = "name: x\nmodle: 1\ndatasets: [a]\nmethods: [b]\ntrain:\n  lr: -1\n  epcohs: 2\nmodel: {layers: 0}\n"
    assert complaint(write(text)).splitlines() == [
        "s.yaml:2: modle: unknown key (did you mean 'model'?)",
        "s.yaml:6: train.lr: bad value -1: must be greater than 0",
        "s.yaml:7: train.epcohs: unknown key (did you mean 'epochs'?)",
        "s.yaml:8: model.layers: bad value 0: must be greater than or equal to 1",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epcohs=3", "--set train.epcohs=3: unknown key (did you mean 'epochs'?)"),
        ("train.epochs=-3", "--set train.epochs=-3: bad value -3: must be greater than or equal to 1"),
        ("train={epcohs: 3}", "--set train={epcohs: 3}: train.epcohs: unknown key (did you mean 'epochs'?)"),
        ("trian.epochs=3", "--set trian.epochs=3: trian: unknown key (did you mean 'train'?)"),
        ("epochs=3", "--set epochs=3: unknown key (--set train.epochs=3)"),
        ("seeds=3", "--set seeds=3: bad value 3: must be a list (--set 'seeds=[0, 1, 2]')"),
        ("model=gat", "--set model=gat: bad value 'gat': must be a section of `key: value` lines "
         "(--set model.name=gat)"),
        ("train.target=95", "--set train.target=95: bad value 95: must be less than or equal to 1 "
         "(--set train.target=0.95)"),
        ("train.epochs", "--set train.epochs: not of the form section.key=value"),
        ("=3", "--set =3: not of the form section.key=value"),
        ("a..b=3", "--set a..b=3: not of the form section.key=value"),
        ("name.x=3", "--set name.x=3: 'name' is not a section"),
        ("name.x.y=3", "--set name.x.y=3: 'name' is not a section"),
        ("methods.9.full.transform_before_exchange=1",
         "--set methods.9.full.transform_before_exchange=1: 'methods' is a list; '9' is not one of its items "
         "(number them 0 to 1)"),
        ("methods.full=1",
         "--set methods.full=1: 'methods' is a list; 'full' is not one of its items (number them 0 to 1)"),
        ("train.lr=[", "--set train.lr=[:1: while parsing a flow node, expected the node content, "
         "but found '<stream end>'"),
    ],
)  # fmt: skip
def test_mistakes_in_overrides_golden(write, override: str, message: str) -> None:
    assert complaint(write(RICH), override) == message


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"seeds": 1j}, "seeds: bad value 1j: must be a list (write `seeds: VALUE`)"),
        ({"seeds": {"a": "b" * 300}}, "must be a list (write `seeds: VALUE`)"),
        ({"epochs": {3}}, "epochs: unknown key (write `train: {epochs: VALUE}`)"),
        ({"train": {"target": "95"}}, "train.target: bad value '95': must be less than or equal to 1"),
        ({"tuning": {"target": {"of": "full", "belw": 1}}}, "unknown key"),
    ],
)
def test_a_fix_repeats_only_what_a_file_can_hold(section: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_suite({"name": "demo", "datasets": ["digits"], "methods": ["full"], **section})
    assert message in str(error.value)


def test_the_number_of_an_item_has_any_number_of_digits(write) -> None:
    assert "is not one of its items" in complaint(write(RICH), f"methods.{'9' * 5001}.full=1")


def test_overrides_replace_add_and_reach_into_lists(write) -> None:
    suite = load_suite(
        write(RICH),
        [
            "train.epochs=3",
            "train.lr=1e-3",
            "timeouts.trial_s=5",
            "seeds=[4]",
            "methods.0.full.transform_before_exchange=true",
            "methods.1.bns-gcn.rate=0.5",
            "model.0.hidden=8",
            "train.patience=null",
        ],
    )
    assert (suite.train[0].epochs, suite.train[0].lr, suite.timeouts.trial_s, suite.seeds) == (3, 0.001, 5, (4,))
    assert suite.methods == (
        MethodSpec(name="full", options={"transform_before_exchange": True}),
        MethodSpec(name="bns-gcn", options={"rate": 0.5}),
    )
    assert [m.hidden for m in suite.model] == [8, 64]


def test_a_later_override_wins_and_the_blame_is_its_own(write) -> None:
    path = write(RICH)
    assert load_suite(path, ["train.epochs=3", "train.epochs=4"]).train[0].epochs == 4
    assert complaint(path, "train.epochs=x", "train={epochs: -1}").startswith("--set train={epochs: -1}: train.epochs")


def test_files_that_are_no_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reddit.yaml").write_text(PLAIN)
    assert complaint(Path("redit.yaml")) == "redit.yaml: no such file (did you mean 'reddit.yaml'?)"
    assert complaint(Path("no/such.yaml")) == "no/such.yaml: no such file"
    Path("dir.yaml").mkdir()
    assert complaint(Path("dir.yaml")) == "dir.yaml: is a directory, expected a file (name a regular file)"
    Path("latin.yaml").write_bytes(b"name: \xe9")
    assert complaint(Path("latin.yaml")) == "latin.yaml: not UTF-8 text"
    Path("huge.yaml").write_bytes(b"#" * (2 << 20))
    assert complaint(Path("huge.yaml")) == "huge.yaml: larger than 1 MiB (is it the file that is meant?)"
