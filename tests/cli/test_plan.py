"""`harness plan`: what fits, how long it takes, and what is hardly meant."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from support.commands import NO_GPU, harness
from support.scaled import computed

from harness.launch.hardware import Capacity
from harness.results.record import Record
from harness.results.record_store import ResultStore
from harness.runtime.run_config import Rates
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.timeout(90)


def test_plan_says_what_does_not_fit_and_of_what_memory_consists(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(1 << 30))
    large = ["--set", "datasets=[reddit]", "--set", "seeds=[0]"]
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *large, "--set", "model.hidden=2048")
    assert re.search(r"may not fit: needs up to \S+ GiB, this machine has 1 GiB", out)
    gpus = Capacity(1 << 40, (1 << 30, 1 << 40), names=("A", "A"))
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: gpus)
    gpu = ["--device", "gpu", "--set", "partition.parts=[2]"]
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *large, *gpu, "--set", "model.hidden=4096")
    assert re.search(r"may not fit: needs up to \S+ GiB, GPU 0 has 1 GiB", out)
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(1 << 30))
    _, out, _ = harness(capsys, "plan", "tiny.yaml", "--memory", "--only", "seed=0")
    assert "fit:" not in out
    components = re.findall(r"^(input features|layers \(Eq\. 3\)|adjacency|together) +\S+ [KMG]?i?B$", out, re.M)
    assert {"input features", "layers (Eq. 3)", "adjacency", "together"} == set(components)


def test_plan_names_the_bound_of_an_evaluation_that_does_not_fit(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(4 << 30))
    asked = ["--set", "datasets=[reddit]", "--set", "seeds=[0]", "--set", "partition.parts=[2]"]
    asked += ["--set", "methods=[{graphsage: {batch_size: 64, fanouts: 2}}]", "--set", "model.hidden=2048"]
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *asked)
    assert re.search(
        r"this machine has 4 GiB; without the exact evaluation it fits: bound that by `train.eval_memory`", out
    )
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *asked, "--set", "train.eval_memory=512MiB")
    assert "may not fit" not in out
    assert "eval_memory" not in out
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(1 << 28))
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *asked)
    assert "may not fit" in out
    assert "eval_memory" not in out
    code, _, error = harness(capsys, "plan", "tiny.yaml", *asked, "--set", "train.eval_memory=much")
    assert code == 2
    assert re.search(r"train\.eval_memory.*much", error)


def test_plan_names_partitioners_that_fit_where_metis_does_not(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(4 << 30))
    large = ["--set", "datasets=[{sbm: {nodes: 5000000}}]", "--set", "seeds=[0]", "--set", "train.inductive=false"]
    takes = r"metis takes about \S+ GiB for 5,000,000 nodes and \S+ entries"
    said = f"{takes}, and this machine has 4 GiB; method: kaminpar or coarsened or stream"
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *large, "--set", "partition={method: metis, parts: [1, 2]}")
    rows = [line for line in out.splitlines() if " run " in line]
    assert {("P=2" in row, re.search(said, row) is not None) for row in rows} == {(True, True), (False, False)}
    streamed = [*large, "--set", "partition.method=stream"]
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *streamed)
    assert "takes about" not in out
    # METIS of clusters does not fit either.
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *streamed, "--set", "methods=[clustergcn]")
    assert re.search(f"{takes}, and this machine has 4 GiB; clustered_by: kaminpar or coarsened or stream", out)
    for fits in ("{clustered_by: stream}", "{scope: local}", "{clusters: 1, per_batch: 1}"):
        _, out, _ = harness(capsys, "plan", "tiny.yaml", *streamed, "--set", f"methods=[{{clustergcn: {fits}}}]")
        assert "takes about" not in out


def test_plan_says_what_options_come_to_on_the_graph(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ring has 12 nodes; -1 is meant, and the default is a share of it."""
    for size, whole in (("12", True), ("11", False), ("-1", False)):
        methods = f"methods=[{{graphsaint: {{size: {size}, frontier: 2}}}}]"
        code, out, _ = harness(capsys, "plan", "tiny.yaml", "--set", methods, "--only", "seed=0")
        said = "size 12 is no less than the 12 nodes there are: every subgraph is the whole graph\n"
        assert (code, said in out) == (0, whole)
    _, out, _ = harness(capsys, "plan", "tiny.yaml", "--set", "methods=[graphsaint]", "--only", "seed=0")
    assert "whole graph" not in out


@pytest.mark.slow
def test_plan_tells_how_long_by_what_ran_here(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*options: str) -> str:
        return harness(capsys, "plan", "tiny.yaml", *options)[1].splitlines()[-1]

    assert harness(capsys, "run", "tiny.yaml", "--only", "parts=1")[0] == 0
    assert told("--set", "seeds=[3,4]", "--only", "parts=1").endswith("s one after another: 2 ran here before")
    longer = ["--set", "train.epochs=1000", "--set", "seeds=[0]"]
    # The fake ranks say 0.1 s an epoch, whatever they take.
    like = re.fullmatch(
        r"about 1 min (\d\d) s: 1 by trials of their method that ran here", told(*longer, "--only", "P=1")
    )
    assert like, told(*longer, "--only", "P=1")
    assert 40 <= int(like.group(1)) <= 45
    assert "1 by trials of their method that ran here, 1 by their arithmetic" in told(*longer)
    assert "ran here" not in told("--results", "other")


def test_plan_works_beside_results_of_no_suite(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("results").mkdir()
    Path("results", "README.md").write_text("not yet")
    code, out, err = harness(capsys, "plan", "tiny.yaml")
    assert (code, err) == (0, "")
    assert "6 by their arithmetic" in out.splitlines()[-1]


def test_plan_warns_of_what_is_hardly_meant(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.planner.cores", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    one_seed = ["plan", "tiny.yaml", "--set", "seeds=[0]"]

    def notes(*options: str) -> list[str]:
        _, out, err = harness(capsys, *one_seed, *options)
        return [line for line in (out + err).splitlines() if line.startswith("note: ")]

    assert notes() == []
    assert notes("--set", "partition.parts=[2,12]") == [
        "note: 1 trial: 12 ranks on 2 cores: times are of ranks that wait for one another"
    ]
    assert notes("--device", "gpu") == [f"note: 2 trials: device cuda, and {NO_GPU}"]
    assert notes("--executor", "slurm", "--set", "partition.parts=[4]") == []  # not this machine's cores
    excluded = "exclude=[{parts: 1}, {parts: 3}]"
    assert notes("--set", excluded) == [f"note: --set {excluded}: exclude.1: excludes no trial of the suite"]


def test_what_no_machine_could_hold_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is planned for it, by `plan` and `run` alike; a line for each mistake."""
    monkeypatch.setattr("harness.launch.executors.local.capacity", lambda: Capacity(30 << 20))
    wide = ["--set", "partition.parts=[2,11,12]", "--set", "model.hidden=10000000", "--set", "seeds=[0]"]
    lines = (
        "error: --set partition.parts=[2,11,12]: bad value 11: this machine has memory for 10 processes "
        "(fewer parts, or more machines)\n"
        "error: --set partition.parts=[2,11,12]: bad value 12: this machine has memory for 10 processes "
        "(fewer parts, or more machines)\n"
        "error: --set model.hidden=10000000: bad value 10000000: weights, gradients and moments of a rank take "
    )
    for command in ("plan", "run"):
        code, _, err = harness(capsys, command, "tiny.yaml", *wide)
        assert code == 2
        assert err.startswith(lines)
        assert err.endswith(", this machine has 30 MiB (make it smaller)\n")
        assert len(err.splitlines()) == 3
    assert harness(capsys, "plan", "tiny.yaml", *wide, "--nnodes", "2")[2].startswith("error: --set model.hidden")
    parts = ["--set", "partition.parts=[2,13]"]
    assert harness(capsys, "run", "tiny.yaml", *parts)[::2] == (
        2,
        "error: --set partition.parts=[2,13]: bad value 13: ring has 12 nodes (at most 12)\n",
    )


def test_a_set_without_validation_nodes_has_no_score(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load(home / "data" / "ring.npz") as ring:
        np.savez(home / "data" / "blind.npz", **dict(ring) | {"val_mask": np.zeros(12, np.bool_)})
    blind = ("tiny.yaml", "--set", "datasets=[blind]")
    code, out, _ = harness(capsys, "plan", *blind)
    assert code == 0
    assert "note: blind has no validation nodes: no score chooses an epoch, or settings\n" in out
    for key, value in (("target", "0.9"), ("patience", "3")):
        code, _, err = harness(capsys, "plan", *blind, "--set", f"train.{key}={value}")
        said = f"bad value {value}: 'blind' has no validation nodes, and so no score (remove it, or give the set"
        assert (code, said in err, err.count("\n")) == (2, True, 1)
    tuning = ("--set", "tuning={}", "--set", "seeds=[0,1,2,3,4]", "--set", "partition.parts=2")
    code, _, err = harness(capsys, "tune", *blind, *tuning)
    assert (code, "'blind' has no validation nodes: no score says which" in err) == (2, True)


def test_plan_without_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = harness(capsys, "plan", "tiny.yaml", "--set", "datasets=[reddit]", "--set", "seeds=[0]")
    assert code == 0
    row = re.compile(r"^\w{12}  skip   reddit sage-2x4 full P=1 chunk seed=0  [\d.]+ GiB +reddit is not here$", re.M)
    assert row.search(out)
    assert out.endswith("\n2 trials: 0 done, 0 to run, 2 skipped\nget the missing data: harness data get reddit\n")


def test_plan_says_what_a_published_graph_sends_without_its_data(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = "methods=[full, {bns-gcn: {rate: [0.1, 0]}}, cagnet, psc-gcn, graphsage]"
    model = ["--set", "model={name: sage, layers: 3, hidden: 64}", "--set", "train.inductive=false"]
    given = ["--set", "datasets=[reddit]", "--set", methods, "--set", "seeds=[0]", *model]
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *given, "--set", "partition={method: metis}", "--parts", "8")
    rows = {
        line.split()[2]: line.split() for line in out.splitlines() if re.search(r"P=8 +[\d.]+ [KMG]iB +\S+ s ", line)
    }
    assert rows.keys() == {"full", "bns-gcn(rate=0.1)", "bns-gcn(rate=0)", "cagnet(replication=1,rate=1)"}
    weights = 2 * (602 * 64 + 64 * 64 + 64 * 41) + 2 * 64 + 41  # two matrices a layer, and biases
    reduced = 2 * 7 * (weights + 1) * 4
    sent = 4 * (602 + 2 * 2 * 64)  # the inputs; two hidden layers, forward and backward
    boundary = round(3.388 * 232_965)
    expected = {
        "full": boundary * sent + reduced,
        "bns-gcn(rate=0.1)": int(0.1 * boundary) * (sent + 4) + 8 * 56 + reduced,
        "bns-gcn(rate=0)": reduced,
        "cagnet(replication=1,rate=1)": 7 * 232_965 * sent + reduced,
    }
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    for name, (*_, amount, unit, gigabit, _, _, _, _, _, _, _, _, _) in rows.items():
        assert float(amount) * units[unit] == pytest.approx(expected[name], rel=0.006), name
        assert float(gigabit) == pytest.approx(expected[name] / 8 * 8 / 1e9, rel=0.06), name
    assert "reddit (Bajaj et al., PVLDB 18, 2025)" in out
    assert "compute here" not in out
    measured = {f"{kind} {width}": rate for kind, rate in (("cached", 1e10), ("gather", 1e9)) for width in (16, 256)}
    measured |= {"product float32": 1e10, "copy": 1e9}
    rates = Rates(machine="", when=datetime.now(UTC), ranks=2, measured=measured)
    monkeypatch.setattr("harness.launch.rates.known_rates", lambda: rates)
    monkeypatch.setattr("harness.launch.planner.cores", lambda: 2)
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *given, "--set", "partition={method: metis}", "--parts", "8")
    products = 4 * 232_965 * (2 * 602 * 64 + 3 * 64 * 64 + 3 * 64 * 41) / 1e10
    read, once = (rows * 8 * (64 + 64 + 41) for rows in (114_615_892, 232_965))
    fast, slow = (float(each) for each in re.search(r"full P=8 +\S+ GiB +(\S+) to (\S+) s", out).groups())  # type: ignore[union-attr]
    assert fast == pytest.approx((products + (read - once) / 1e10 + once / 1e9) / 2, rel=0.05)  # two cores
    assert slow == pytest.approx((products + read / 1e9) / 2, rel=0.05)
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *given, "--set", "partition={method: metis}", "--parts", "65")
    assert "bytes an epoch" not in out
    _, out, _ = harness(capsys, "plan", "tiny.yaml", *given, "--set", "partition={method: random}", "--parts", "8")
    assert "bytes an epoch" not in out


def test_plan_predicts_an_epoch_on_machines_that_are_not_here(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks computed 3 s each, one 6 s: four compute 1.5 s."""
    code, out, _ = harness(capsys, "plan", "tiny.yaml", "--on", "4xcore,8mbit")
    assert code == 0
    assert "an epoch of 4 ranks on 4 hosts at 8 Mbit/s, predicted: not measured" in out
    assert re.search(r"^ring sage-2x4 full P=4 chunk +no trial in 2 to 4 parts ran here$", out, re.M)
    store = ResultStore(Path("results"), "tiny")
    for trial in expand(load_suite(Path("tiny.yaml"))):
        parts = trial.partition.parts
        table = [{"part": "total", "boundary": 4 * (parts - 1), "edges": 24, "edges_cut": 4 * (parts - 1)}]
        known = {"trial": trial.id, "suite": "tiny", "label": trial.label, "status": "ok", "wall_s": 9.0}
        known |= {"started": "2026-01-02T03:04:05+00:00", "config": trial.model_dump(mode="json"), "dataset": {}}
        made = computed([6.0] if parts == 1 else [3.0, 3.0], 1_000_000, boundary=4 * (parts - 1))
        record = Record.model_validate(known | made | {"partition": table})
        with store.runner():
            store.commit(trial.id, record, [], "")
    code, out, _ = harness(capsys, "plan", "tiny.yaml", "--on", "4xcore,8mbit", "--set", "partition.method=chunk")
    assert code == 0
    assert "4 parts are not known (run harness partition DATASET --parts 4)" in out
    assert harness(capsys, "partition", "ring", "--method", "chunk", "--parts", "4")[0] == 0
    code, out, _ = harness(capsys, "plan", "tiny.yaml", "--on", "4xcore/2,8mbit", "--price", "360")
    assert code == 0
    # Two ranks of a host share its link. The bytes of four parts are those of the closed form: a few hundred.
    # Ten epochs of two hosts at 360 an hour: 3 each.
    row = r"full P=4 chunk +(\S+) s +(\S+) to (\S+) s +1.5 s +(\S+) s +0 s +0.0083 h +3 +trials in 1, 2 parts$"
    found = re.search(row, out, re.M)
    assert found, out
    epoch, low, high, exchange = map(float, found.groups())
    assert low < epoch < high
    assert 0 < exchange < 0.01
    assert epoch == pytest.approx(1.5 + exchange, rel=0.01)
    code, _, error = harness(capsys, "plan", "tiny.yaml", "--on", "16xH100,400gbit")
    assert (code, "--on: '16xH100,400gbit' are no machines" in error) == (2, True)
