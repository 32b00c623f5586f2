"""The suites that are shipped: they expand without any data, and say what the papers say."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from support.tiers import tiered

from harness.runtime.method import METHODS
from harness.suite.expand import expand
from harness.suite.schema import TrialConfig
from harness.suite.select import matches
from harness.suite.suite_file import load_suite
from harness.tune.space import Searched

SUITES = Path(__file__).resolve().parents[2] / "suites"
FAIR = ["fair/small", "fair/products-like", "fair/reddit-like"]
NAMES = ["amazon", "arxiv", *FAIR, "planetoid", "ppi", "products", "quickstart", "reddit", "yelp"]
PSC = [f"papers/psc-{what}" for what in ("table2", "table3", "fig6", "fig7", "fig8")]
SKEWED = [f"papers/skewed-{what}" for what in ("fig3", "fig4", "fig5", "centralised")]
TABLE1 = "papers/skewed-table1"  # of real graphs that are small enough, so that it needs no twin
DGS = [
    f"papers/dgs-{what}" for what in ("fig2", "fig5-7", "fig8", "fig9", "fig10", "table2", "table3", "table4", "table5")
]
SAINT = [f"papers/saint-{what}" for what in ("fig2", "fig3", "fig4", "fig7-8", "table3")]
BNS = [f"papers/bns-{what}" for what in ("table1", "fig3-5", "table2")]
TWINNED = [*BNS, *PSC, *SKEWED, *DGS, *SAINT]
FIG5 = ["papers/saint-fig5", "papers/saint-fig5-small"]  # its graphs are generated ones
PSC_TABLE1 = "papers/psc-table1"  # its twin is that of bns-table1
COMPARED = [
    *(f"papers/bajaj-{table}" for table in ("table3", "table21", "table22", "table22-twin")),
    "papers/neutronbench-fig6-twin",
]
LATER = [f"papers/{name}-twin" for name in ("adaqp", "salient", "labor")]
PAPERS = [*TWINNED, *(f"{name}-twin" for name in TWINNED), TABLE1, PSC_TABLE1, *FIG5, *COMPARED, *LATER]
COMPUTERS = [f"papers/{what}-computers" for what in ("bns-table2", "dgs-table3", "dgs-table4")]
PPI_GO = "papers/saint-fig2-ppi-go"
FAIR_DATA = ["fair/computers", "fair/flickr", "fair/ogbn-arxiv"]
ARXIV = [f"papers/{what}-arxiv" for what in ("psc-table2", "dgs-sampling", "bajaj")]
NEED_DATA = [*FAIR_DATA, "anchor", *ARXIV, *COMPUTERS, PPI_GO]
PAPER = {
    "bns": "BNS-GCN, ", "psc": "PSC-GCN, ", "skewed": "Skewed sampling, ", "dgs": "DGS, ", "saint": "GraphSAINT, ",
    "bajaj": "Bajaj et al., ", "neutronbench": "NeutronBench, ",
    "adaqp": "AdaQP, ", "salient": "SALIENT++, ", "labor": "LABOR, ",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_DATA", raising=False)


@functools.cache
def trials(name: str) -> list[TrialConfig]:
    return expand(load_suite(SUITES / f"{name}.yaml"), device="cpu")


def tiny_graph(path: Path) -> None:
    nodes = np.arange(256)  # in pairs
    mask = np.ones(256, dtype=bool)
    np.savez(
        path,
        indptr=np.arange(257),
        indices=(nodes ^ 1).astype(np.int32),
        feat=np.zeros((256, 3), dtype=np.float32),
        label=nodes % 2,
        train_mask=mask,
        val_mask=mask,
        test_mask=mask,
    )


def test_these_are_all() -> None:
    found = [path.relative_to(SUITES).with_suffix("").as_posix() for path in SUITES.rglob("*.yaml")]
    assert sorted(found) == sorted([*NAMES, *PAPERS, *NEED_DATA, "advise", "large", "network", "scaling"])


@pytest.mark.parametrize("name", [*NAMES, *PAPERS, *NEED_DATA, "advise", "large", "network", "scaling"])
def test_a_suite_bears_its_files_name_and_says_where_its_numbers_are_from(name: str) -> None:
    path = SUITES / f"{name}.yaml"
    head = path.read_text().split("\nname:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "Numbers:" in head
    suite = load_suite(path)
    assert suite.name == path.stem
    assert suite.description


@pytest.mark.quick(15)
@pytest.mark.parametrize("name", [*NAMES, *PAPERS, "advise", "large", "network", "scaling"])
def test_it_expands_without_data(name: str) -> None:
    assert trials(name)  # its claims are held against its trials here, too


@pytest.mark.parametrize("name", tiered([*FAIR, *FAIR_DATA], ["fair/small"]))
def test_a_fair_suite_tunes_every_method_with_one_budget(name: str, tmp_path: Path) -> None:
    suite = load_suite(SUITES / f"{name}.yaml")
    for dataset in suite.datasets:
        tiny_graph(tmp_path / f"{dataset.name}.npz")
    subjects = Searched(suite, device="cpu", data_dir=tmp_path).subjects()
    shipped = {entry.name for entry in entry_points(group="harness.methods")}
    for dataset in suite.datasets:
        assert {each.method.name for each in subjects if each.dataset.name == dataset.name} == shipped
    assert all({"train.lr", "train.weight_decay", "model.dropout"} <= set(each.space) for each in subjects)
    assert {claim.source.split(",")[0] for claim in suite.claims} == {"Bajaj et al."}


def test_the_fair_suites_are_one_nights_work() -> None:
    """Search and final trials of every method, on the loopback and over a network; all on the same two networks."""
    seconds = 0.0
    for name in [*FAIR, *FAIR_DATA]:
        suite = load_suite(SUITES / f"{name}.yaml")
        if name != "fair/small":
            budget, final = suite.tuning.budget, len(suite.seeds) * len(suite.network)
            share = 0.5 if suite.tuning.pruner == "asha" else 1.0  # measured: 336 trials of fair/reddit-like
            seconds += len(suite.methods) * (share * budget.trials + final) * budget.seconds
            assert [own and own.label for own in suite.network] == [None, "1gbit"]
            assert suite.train[0].stop_at_target
    assert seconds <= 12 * 3600


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_suite_claims_what_the_paper_does(name: str) -> None:
    claims = load_suite(SUITES / f"{name}.yaml").claims
    paper = PAPER[Path(name).name.split("-")[0]]
    assert any(claim.source.startswith(paper) for claim in claims)
    assert len({claim.name for claim in claims}) == len(claims)


@pytest.mark.parametrize("name", PSC)
def test_the_settings_of_psc_gcn(name: str) -> None:
    sizes = {"reddit": (4, 256), "ogbn-products": (3, 128), "yelp": (4, 512)}
    found = trials(name)
    for trial in found:
        assert (trial.model.name, trial.model.layers, trial.model.hidden) == ("gcn", *sizes[trial.dataset.name])
        assert (trial.partition.method, trial.partition.parts) == ("metis", 6)
        assert trial.method.options.get("inner_factor", 1.1) == 1.1
    assert {t.dataset.name for t in found} == ({"reddit"} if name.endswith("fig8") else set(sizes))
    own = trials(f"{name}-twin")
    assert {t.method.name for t in own} == {t.method.name for t in found}
    assert {(t.dataset.name, t.partition.parts, t.train.threads) for t in own} == {("twin", 2, 1)}


@pytest.mark.parametrize("name", [*SKEWED, TABLE1])
def test_the_settings_of_skewed_sampling(name: str) -> None:
    hidden = {"youtube": 512, "amazon": 512}
    found = trials(name)
    for trial in found:
        assert (trial.model.name, trial.model.layers, trial.model.norm) == ("gcn", 5, "none")
        assert trial.model.hidden == hidden.get(trial.dataset.name, 256)
        assert trial.train.pos_weight == (50 if trial.dataset.name == "youtube" else 1)
        assert (trial.partition.method, trial.partition.parts) == ("random", 8 if "fig5" in name else 4)
        sizes = (4500,) if trial.method.options["base"] == "saint" else (512, 512)
        keys = ("size",) if trial.method.options["base"] == "saint" else ("batch_size", "sizes")
        assert tuple(trial.method.options[key] for key in keys) == sizes
        assert trial.method.options["layers"] == "paper"
        assert trial.dataset.options.get("split", "full") == "full"
    assert len({trial.seed for trial in found}) == (10 if name == TABLE1 else 1 if "central" in name else 3)
    twins = [] if name == TABLE1 else trials(f"{name}-twin")
    for own in (found, *([twins] if twins else [])):
        options = [trial.method.options for trial in own]
        if "central" in name:
            assert {(o["version"], o["storage"]) for o in options} == {("full", "sharded"), ("full", "host")}
        else:
            versions = {(o["version"], o["distortion"] if o["version"] == "skewed" else 0) for o in options}
            skews = (2, 4, 8, 16) if name == TABLE1 else (4, 8, 16)
            assert versions == {("full", 0), ("local", 0), *(("skewed", d) for d in skews)}
    assert {(t.dataset.name, t.train.threads, t.partition.parts, t.model.layers) for t in twins} <= {("twin", 1, 4, 5)}


@pytest.mark.parametrize("name", DGS)
def test_the_settings_of_dgs(name: str) -> None:
    found, own = trials(name), trials(f"{name}-twin")
    for trial in found:
        assert (trial.model.hidden, trial.model.norm, trial.train.lr) == (16, "none", 0.003)
        assert trial.model.layers == 2 or name.endswith("fig9")
        assert trial.partition.parts == 8 or name.endswith(("fig2", "fig5-7", "table4"))
        if trial.method.name != "clustergcn":
            assert trial.method.options["batch_size"] == 1024
        if trial.method.name in ("graphsage", "dgs"):
            assert trial.method.options["fanouts"] in (64, -1, [25, 10])
        if trial.method.name == "dgs":
            assert (trial.method.options["explain_steps"], trial.method.options["threshold"]) == (50, 0.01)
            assert trial.method.options["explain"] == "background"
    assert {t.method.name for t in own} == {t.method.name for t in found}
    assert {t.model.hidden for t in own} == {16}
    assert {t.dataset.name for t in own} <= {"twin", "sbm"}
    assert all(t.train.threads == 1 and t.partition.parts in (1, 2, 4) for t in own)
    inline = {t.method.options["explain"] == "inline" for t in own if t.method.name == "dgs"}
    assert inline <= {not name.endswith("table5")}


@pytest.mark.parametrize("name", SAINT)
def test_the_settings_of_graphsaint(name: str) -> None:
    found, own = trials(name), trials(f"{name}-twin")
    for trial in [*found, *own]:
        assert (trial.model.name, trial.partition.parts) == ("sage", 1)
        options = trial.method.options
        if trial.method.name == "graphsaint":
            assert options["frontier"] * 8 == options["size"]
            assert (options["length"], options["scope"]) == (3, "global")
            assert options["normalise"] == name.endswith("fig2")
            assert options["roots"]
            assert not options["entered"]
            # A pool is an epoch's subgraphs, as many for each thread.
            pool = options.get("pool", 0)
            assert (pool > 0) == name.endswith(("fig3", "fig4"))
            assert not pool or pool == options["steps"]
            assert pool % (trial.train.threads or 1) == 0
        if trial.method.name == "graphsage":
            assert options["fanouts"] == [25, *[10] * (trial.model.layers - 1)]
    for trial in found:
        assert trial.method.options.get("size", 8000) == 8000
        assert trial.train.threads == 1 or not name.endswith("fig2")
        assert trial.model.hidden in (512, 1024) or name.endswith("fig4")
    assert {t.dataset.name for t in found} == {"ppi", "reddit", "yelp", "amazon"}
    assert {t.dataset.name for t in own} == {"twin"}
    assert {t.method.name for t in own} == {t.method.name for t in found}
    samplers = [{t.method.options.get("sampler") for t in each} for each in (found, own)]
    assert samplers[0] == samplers[1]
    assert {"frontier", "rw", "edge"} <= samplers[0] or not name.endswith(("fig2", "fig4"))
    for each in (found, own):
        assert (len({t.train.threads for t in each}) > 1) == name.endswith(("fig3", "fig4"))
        assert (len({t.model.layers for t in each}) > 1) == name.endswith("fig7-8")


def test_the_protein_graph_of_the_data_directory(tmp_path: Path) -> None:
    for name in ("ppi_go", "flickr"):
        tiny_graph(tmp_path / f"{name}.npz")
    found = expand(load_suite(SUITES / f"{PPI_GO}.yaml"), device="cpu", data_dir=tmp_path)
    like = trials("papers/saint-fig2-twin")
    rows = {(t.method.name, t.method.options.get("sampler")) for t in found}
    assert rows == {(t.method.name, t.method.options.get("sampler")) for t in like}
    assert {t.dataset.name for t in found} == {"ppi_go", "flickr"}


@pytest.mark.parametrize("name", ["papers/dgs-table4", "papers/dgs-table4-twin"])
def test_the_rows_of_dgs_table_4(name: str) -> None:
    found = trials(name)
    most = max(t.partition.parts for t in found)
    rows = {(t.method.name, t.method.options["feature_rate"]) for t in found if t.partition.parts == most}
    baselines = ("graphsage", "fastgcn", "ladies", "clustergcn")
    assert rows == {("dgs", 0.85), *((method, rate) for method in baselines for rate in (1, 0.85))}
    assert {t.method.options["period"] for t in found if t.method.name == "dgs"} == {30, 60, 90}
    full = [t for t in found if t.method.options.get("fanouts") == -1]
    assert {t.dataset.name for t in full} == {t.dataset.name for t in found}
    assert {t.method.name for t in found if t.partition.parts < most} == {"dgs"}


@pytest.mark.parametrize("name", COMPUTERS)
def test_computers_of_the_data_directory(name: str, tmp_path: Path) -> None:
    tiny_graph(tmp_path / "amazon_computers.npz")
    found = expand(load_suite(SUITES / f"{name}.yaml"), device="cpu", data_dir=tmp_path)
    like = trials(name.replace("computers", "twin"))
    assert {t.method.name for t in found} <= {t.method.name for t in like}
    assert {t.partition.parts for t in found} == {t.partition.parts for t in like}


@pytest.mark.parametrize("name", ["papers/psc-table2", "papers/psc-table3"])
def test_the_rows_of_psc_gcns_tables(name: str) -> None:
    rows = {(t.method.name, t.method.options.get("staleness"), t.method.options.get("rate")) for t in trials(name)}
    saint = [("graphsaint", None, None)] if name == "papers/psc-table2" else []
    assert rows == {
        *[*saint, ("graphsage", None, None), ("full", None, None), ("pipegcn", 1, None)],
        *[("psc-gcn", 2, 1), ("psc-gcn", 1, 0.1), ("psc-gcn", 2, 0.1), ("psc-gcn", 2, 0.01)],
    }


def test_arxiv_of_the_data_directory(tmp_path: Path) -> None:
    tiny_graph(tmp_path / "ogbn_arxiv.npz")
    found = expand(load_suite(SUITES / "papers" / "psc-table2-arxiv.yaml"), device="cpu", data_dir=tmp_path)
    assert [(t.method.name, *(t.method.options.get(key) for key in ("staleness", "rate"))) for t in found[:4]] == [
        ("full", None, None),
        ("psc-gcn", 1, 0.1),
        ("psc-gcn", 2, 0.1),
        ("psc-gcn", 1, 0.3),
    ]
    assert [t.seed for t in found] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4


@pytest.mark.parametrize(("name", "sizes", "swept"), [(FIG5[0], range(20, 26), 20), (FIG5[1], range(20, 24), 18)])
def test_the_graphs_of_graphsaints_figure_5(name: str, sizes: range, swept: int) -> None:
    found = trials(name)
    assert {(t.dataset.options["scale"], 2 * t.dataset.options["edge_factor"]) for t in found} == {
        *((scale, 16) for scale in sizes),
        *((swept, 2**power) for power in range(3, 9)),
    }
    for trial in found:
        assert [trial.dataset.options[key] for key in ("features", "classes", "train")] == [50, 2, 0.5]
        assert (trial.model.name, trial.model.layers, trial.model.hidden) == ("sage", 2, 512)
        options = [trial.method.options[key] for key in ("sampler", "size", "frontier", "normalise")]
        assert options == ["frontier", 8000, 1000, False]
        assert not trial.train.scored


@pytest.mark.parametrize("name", [*BNS, PSC_TABLE1])
def test_the_suites_of_bns_gcns_tables_and_figures(name: str) -> None:
    sizes = {"reddit": (4, 256, 0.01), "ogbn-products": (3, 128, 0.001), "yelp": (2, 512, 0.001)}
    found = trials(name)
    own = trials(f"{name}-twin" if name != PSC_TABLE1 else f"{BNS[0]}-twin")
    for trial in [*found, *own]:
        assert (trial.partition.method, trial.partition.objective) == ("metis", "volume")
    if "table1" in name:
        assert {t.method.name for t in [*found, *own]} == {"full"}
        return
    for t in found:
        assert (t.model.name, t.model.layers, t.model.hidden, t.train.lr) == ("sage", *sizes[t.dataset.name])
    rates = [{t.method.options["rate"] for t in each if t.method.name == "bns-gcn"} for each in (found, own)]
    assert rates[0] == rates[1] == ({1, 0.1, 0.01} if "fig" in name else {1, 0.1, 0.01, 0})
    assert {t.method.name for t in own} == {t.method.name for t in found}


FLAGSHIPS = [
    ("reddit", "reddit", 4, 0, 256, 0.01, 1500, 0.5, True),
    ("products", "ogbn-products", 3, 0, 128, 0.001, 500, 0.3, False),
    ("yelp", "yelp", 2, 2, 512, 0.001, 3000, 0.1, True),
    ("amazon", "amazon", 2, 0, 512, 0.01, 500, 0.1, True),
    ("arxiv", "ogbn-arxiv", 3, 0, 256, 0.01, 500, 0.5, False),
]


@pytest.mark.parametrize(
    ("name", "dataset", "layers", "linear", "hidden", "lr", "epochs", "dropout", "inductive"), FLAGSHIPS
)
def test_a_flagship_compares_every_method_on_one_graph(
    name: str,
    dataset: str,
    layers: int,
    linear: int,
    hidden: int,
    lr: float,
    epochs: int,
    dropout: float,
    inductive: bool,
) -> None:
    found = trials(name)
    for trial in found:
        model, train = trial.workload  # `sign` has a model of its own
        assert (trial.dataset.name, trial.partition.method) == (dataset, "metis")
        assert (model.name, model.layers, model.linear_layers, model.hidden) == ("sage", layers, linear, hidden)
        assert (model.norm, model.dropout, train.weight_decay) == ("layer", dropout, 0)
        assert (train.optimizer, train.lr, train.epochs, train.inductive) == ("adam", lr, epochs, inductive)
    by_parts = {parts: {t.method.name for t in found if t.partition.parts == parts} for parts in (1, 2, 4)}
    assert by_parts[2] == by_parts[4] == {*METHODS.names()}
    assert by_parts[1] == {"full", "graphsage", "graphsaint"}
    assert {t.method.options["rate"] for t in found if t.method.name == "bns-gcn"} == {0.1, 0.01}
    assert {t.seed for t in found} == {0, 1, 2}
    night_s = 12 * 3600
    assert sum(30 + (t.train.seconds or 0) for t in found) < night_s  # half a minute around each training


@pytest.mark.parametrize(("name", "dataset"), [("reddit", "reddit"), ("products", "ogbn-products"), ("yelp", "yelp")])
def test_bns_table_2_trains_the_models_of_the_flagships(name: str, dataset: str) -> None:
    def learnt(suite: str) -> set[tuple[str, float, int]]:
        own = (t for t in trials(suite) if t.dataset.name == dataset)
        return {(t.workload[0].model_dump_json(), t.train.lr, t.train.epochs) for t in own}

    assert learnt("papers/bns-table2") == learnt(name)


def test_planetoid() -> None:
    found = trials("planetoid")
    assert {(t.dataset.name, t.method.name, t.partition.parts, t.seed) for t in found} == {
        (dataset, method, parts, seed)
        for dataset in ("cora", "citeseer", "pubmed")
        for method in ("full", "bns-gcn")
        for parts in (1, 4)
        for seed in (0, 1, 2)
    }
    trial = found[0]
    assert (trial.model.name, trial.model.layers, trial.model.dropout) == ("gcn", 2, 0.5)
    assert (trial.train.epochs, trial.train.lr, trial.train.weight_decay) == (200, 0.01, 5e-4)


def test_quickstart_is_one_graph_six_methods_and_five_seeds() -> None:
    found = trials("quickstart")
    assert len(found) == 35
    assert {t.dataset.options["of"] for t in found} == {"reddit"}
    by_parts = {parts: {t.method.name for t in found if t.partition.parts == parts} for parts in (1, 2)}
    assert by_parts[1] == {"full"}
    assert by_parts[2] == {"full", "bns-gcn", "psc-gcn", "pipegcn", "graphsage", "graphsaint"}
    assert [t for t in found if matches(t, "method=bns-gcn,parts=1")] == []
    assert {t.seed for t in found} == {0, 1, 2, 3, 4}


def test_anchor(tmp_path: Path) -> None:
    tiny_graph(tmp_path / "case50k.npz")
    (tmp_path / "case50k.part2.npy").touch()
    found = expand(load_suite(SUITES / "anchor.yaml"), device="cpu", data_dir=tmp_path)
    keys = ("staleness", "rate", "precompute")
    assert [(t.method.name, *(t.method.options.get(key) for key in keys)) for t in found] == [
        ("full", None, None, True),
        ("full", None, None, False),
        ("bns-gcn", None, 0.1, True),
        ("bns-gcn", None, 0.01, True),
        ("pipegcn", 1, None, True),
        *[("psc-gcn", tau, rate, False) for rate in (1, 0.1, 0.01) for tau in (1, 2)],
    ]
    for trial in found:
        assert trial.partition.file == tmp_path / "case50k.part2.npy"
        assert (trial.model.layers, trial.model.hidden, trial.model.norm, trial.model.dropout) == (3, 128, "layer", 0.5)
        assert (trial.train.lr, trial.train.threads, trial.train.eval_every) == (0.01, 1, 0)
        assert trial.partition.parts == 2
