"""Generated sets against what was asked of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from support.tiers import tiered

from harness.data.catalog import BOUNDARIES, published
from harness.data.generated import communities
from harness.data.generated.sbm import PlantedGraph
from harness.data.generated.twin import SHAPES
from harness.data.graph import GraphData, check_graph
from harness.data.partition import partition_nodes
from harness.data.registry import generators
from harness.errors import UserError
from harness.spec import PartitionSpec
from tools.twins import score_row

SMALL = [
    ("digits", {}),
    ("digits", {"k": 1}),
    ("sbm", {}),
    ("sbm", {"degree": 0.0}),
    ("sbm", {"nodes": 2, "classes": 2, "degree": 1.0, "homophily": 0.0}),
    ("sbm", {"multilabel": True, "degree": 2, "homophily": 1.0}),
    ("kronecker", {"scale": 9}),
    ("kronecker", {"scale": 6, "a": 0.25, "b": 0.25, "c": 0.25}),
    ("twin", {"scale": 0.005}),
    ("twin", {"of": "cora", "scale": 1.0}),
    ("twin", {"of": "ppi", "scale": 0.1}),
]


def make(name: str, **options: object) -> GraphData:
    return generators()[name].make(**options)


def adjacency(graph: GraphData) -> sp.csr_matrix:
    return sp.csr_matrix((np.ones(graph.edges), graph.indices, graph.indptr), shape=(graph.nodes,) * 2)


def edge_homophily(graph: GraphData) -> float:
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    return float((graph.labels[rows] == graph.labels[graph.indices]).mean())


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_graph_is_sound_and_as_announced(name, options):
    graph, info = make(name, **options), generators()[name].info(options)
    check_graph(graph, name, symmetric=True)
    matrix = adjacency(graph)
    assert (matrix != matrix.T).nnz == 0
    assert matrix.diagonal().sum() == 0
    assert matrix.has_canonical_format
    assert graph.indices.dtype == np.int32
    assert np.isfinite(graph.features).all()
    facts = {
        "nodes": graph.nodes,
        "features": graph.features.shape[1],
        "classes": graph.num_classes,
        "multilabel": graph.multilabel,
        "origin": graph.origin,
    }
    assert facts == {key: getattr(info, key) for key in facts}
    assert graph.train_mask.any()
    if name != "kronecker":
        assert np.diff(graph.indptr).min() >= 1


@pytest.mark.quick(4)
@pytest.mark.parametrize(("name", "options"), SMALL)
def test_equal_options_equal_graph(name, options):
    one, two = make(name, **options), make(name, **options)
    for field in dataclasses.fields(GraphData):
        assert np.array_equal(getattr(one, field.name), getattr(two, field.name)), field.name


@pytest.mark.parametrize("name", ["sbm", "twin"])
def test_seed_changes_everything_drawn(name):
    options = {"scale": 0.005} if name == "twin" else {}
    one, two = make(name, seed=0, **options), make(name, seed=1, **options)
    for field in ("indices", "features", "labels", "train_mask"):
        assert not np.array_equal(getattr(one, field), getattr(two, field)), field


def test_more_than_one_chunk_of_edges_is_drawn(monkeypatch):
    """Chunks must differ from one another: repeated ones would be dropped as duplicates."""
    from harness.data.generated import sbm as planted

    monkeypatch.setattr(planted, "CHUNK", 1000)
    graph = make("sbm")
    assert graph.edges == pytest.approx(generators()["sbm"].info({}).edges, rel=0.03)


@pytest.mark.parametrize("homophily", [0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("degree", [5.0, 60.0])
def test_sbm_has_the_degree_and_homophily_asked_for(homophily, degree):
    graph = make("sbm", nodes=3000, classes=10, degree=degree, homophily=homophily)
    assert graph.edges / graph.nodes == pytest.approx(degree, rel=0.03)
    assert edge_homophily(graph) == pytest.approx(homophily, abs=0.02)
    assert np.bincount(graph.labels).tolist() == [300] * 10


def test_groups_within_groups_have_their_shares_of_the_edges():
    """Pairs of cells: 60 % of the edges inside one, 35 % between the two, the rest across pairs."""
    cell = np.arange(2400) % 8
    groups = np.stack([np.zeros(8, np.int64), np.arange(8) // 2, np.arange(8)])
    planted = PlantedGraph(np.ones(2400), cell, groups=groups, shares=[0.05, 0.35, 0.6], edges=48_000, seed=3)
    indptr, indices = planted.csr()
    ends = cell[np.repeat(np.arange(2400), np.diff(indptr))], cell[indices]
    assert indices.size == pytest.approx(96_000, rel=0.02)
    assert (ends[0] == ends[1]).mean() == pytest.approx(0.6, abs=0.01)
    assert (ends[0] // 2 != ends[1] // 2).mean() == pytest.approx(0.05, abs=0.005)


def test_dense_sbm_makes_up_for_coinciding_edges():
    """380 of the 499 possible neighbours: most draws hit an edge that is there already."""
    graph = make("sbm", nodes=500, classes=2, degree=380.0, homophily=0.5)
    assert graph.edges / graph.nodes == pytest.approx(380, rel=0.02)
    assert edge_homophily(graph) == pytest.approx(0.5, abs=0.02)


def test_impossible_graphs_are_refused():
    with pytest.raises(UserError, match=r"edges within communities do not fit.*lower the degree"):
        make("sbm", nodes=100, classes=10, degree=50.0, homophily=0.9)
    with pytest.raises(UserError, match="30 classes of 20 nodes"):
        make("sbm", nodes=20, classes=30)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sbm", {"nods": 5}, r"dataset sbm: unknown option 'nods' \(did you mean 'nodes'\?\)"),
        ("sbm", {"nodes": "many"}, "'many' is not of type int"),
        ("sbm", {"nodes": True}, "True is not of type int"),
        ("sbm", {"homophily": 1.5}, r"1.5 is out of range \(0 to 1\)"),
        ("sbm", {"noise": float("nan")}, "out of range"),
        ("digits", {"k": 0}, "out of range"),
        ("kronecker", {"a": 0.9}, r"a \+ b \+ c = 1.28"),
        ("twin", {"of": "redit"}, "did you mean 'reddit'"),
        ("twin", {"scale": 0}, "out of range"),
        ("twin", {"scale": 1e-5}, "too few nodes for 41 classes"),
    ],
)
def test_options_that_do_not_fit(name, options, message):
    for call in (generators()[name].info, lambda given: make(name, **given)):
        with pytest.raises(UserError, match=message):
            call(options)


def test_digits_is_the_real_thing():
    """Against scikit-learn's own ordering of distances."""
    from sklearn.datasets import load_digits
    from sklearn.metrics import pairwise_distances

    graph = make("digits", k=3)
    distance = pairwise_distances(load_digits().data)
    np.fill_diagonal(distance, np.inf)
    kth = np.sort(distance, axis=1)[:, 2]
    linked = adjacency(graph).toarray() > 0
    closer = (distance < kth[:, None]) | (distance < kth[None, :])
    at_most = (distance <= kth[:, None]) | (distance <= kth[None, :])
    assert not (closer & ~linked).any()
    assert not (linked & ~at_most).any()
    assert (graph.origin, graph.note) == ("real", "")
    assert [m.sum() for m in (graph.train_mask, graph.val_mask, graph.test_mask)] == [1078, 360, 359]
    assert generators()["digits"].info({}).edges == pytest.approx(make("digits").edges, rel=0.01)


def test_ties_between_digits_go_to_the_lower_image_whatever_the_number_of_threads():
    from harness.data.generated.digits import nearest

    points = np.random.default_rng(0).integers(0, 4, (60, 3)).astype(float)
    distance = ((points[:, None] - points[None]) ** 2).sum(2)
    for i, row in enumerate(nearest(points, 7)):
        others = sorted((distance[i, j], j) for j in range(60) if j != i)
        assert row.tolist() == [j for _, j in others[:7]]


def test_kronecker_quadrants():
    """Bits of both ends are drawn by quadrant; with only the upper left one, every edge is a loop at 0."""
    from harness.data.generated.kronecker import rmat

    random = np.random.default_rng(0).random((40_000, 1), dtype=np.float32)
    source, destination = rmat(random, 0.5, 0.2, 0.1)
    share = np.bincount(2 * source + destination, minlength=4) / 40_000
    assert share == pytest.approx([0.5, 0.2, 0.1, 0.2], abs=0.01)
    skewed, even = make("kronecker"), make("kronecker", a=0.25, b=0.25, c=0.25)
    assert np.diff(skewed.indptr).max() > 5 * np.diff(even.indptr).max()
    assert even.edges == pytest.approx(generators()["kronecker"].info({}).edges, rel=0.02)


def test_kronecker_splits_by_share():
    graph = make("kronecker", scale=10, train=0.5)
    assert [mask.sum() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [512, 256, 256]
    assert np.array_equal(graph.indices, make("kronecker", scale=10).indices)


def test_every_published_set_has_a_twin():
    assert set(SHAPES) == set(published())


@pytest.mark.parametrize("of", tiered(sorted(SHAPES), ["reddit", "yelp"]))
def test_smallest_and_small_twins(of):
    real, shape = published()[of].info, SHAPES[of]
    for nodes in (8 * real.classes + 1, 20 * real.classes):
        options = {"of": of, "scale": min(1.0, nodes / real.nodes)}
        graph, info = make("twin", **options), generators()["twin"].info(options)
        assert graph.nodes == info.nodes == pytest.approx(nodes, abs=1)
        assert graph.edges == pytest.approx(info.edges, abs=5 * info.edges**0.5)
        for mask, share in zip((graph.train_mask, graph.val_mask, graph.test_mask), shape.split, strict=True):
            assert mask.sum() == pytest.approx(share * nodes, abs=1.5)
        assert graph.note.startswith(f"twin of {of}, scale ")
        assert graph.note == info.summary
        assert (info.inductive, info.multilabel) == (real.inductive, real.multilabel)


@pytest.mark.parametrize(
    "of", tiered((name for name in sorted(SHAPES) if not published()[name].info.multilabel), ["reddit"])
)
def test_twins_have_the_homophily_of_their_model(of):
    real = published()[of].info
    # 172 classes of a small graph leave no room for both homophily and labels that are flipped
    graph = make("twin", of=of, scale=min(1.0, (100_000 if of == "ogbn-papers100m" else 6000) / real.nodes))
    assert edge_homophily(graph) == pytest.approx(SHAPES[of].homophily, abs=0.065)
    degree = np.diff(graph.indptr)
    assert degree.max() > 5 * degree.mean()  # heavy tail
    assert graph.edges == pytest.approx(graph.nodes * degree.mean())


@pytest.mark.parametrize("of", ["ogbn-arxiv", "ogbn-products"])
def test_flipped_labels_are_those_of_few_edges(of):
    """They are as many as there should be, though the chances of many are at their bound."""
    shape = SHAPES[of]
    graph = make("twin", of=of, scale=20_000 / published()[of].info.nodes)
    degree = np.diff(graph.indptr)
    rng = np.random.default_rng([0, 0])
    community = communities(rng, graph.nodes, published()[of].info.classes, skew=0.5)
    flipped = graph.labels != community
    assert flipped.mean() == pytest.approx(shape.flipped, abs=0.01)
    assert degree[flipped].mean() < 0.6 * degree.mean()


@pytest.mark.slow
@pytest.mark.parametrize("of", ["cora", "pubmed"])
def test_full_graph_training_scores_as_published_and_a_model_without_the_graph_does_not(of):
    (_, published_, full, alone, *_) = (cell.strip() for cell in score_row(of, 1.0).strip("|").split("|"))
    assert float(full) == pytest.approx(float(published_), abs=2)
    assert float(alone) < float(full) - 10


PARTS = (2, 4, 8, 16)
# Scales, and the boundary nodes of all parts in multiples of the graph's: published, or METIS' on the real graph.
CUT = {
    "reddit": (0.03, tuple(BOUNDARIES["reddit"].by_parts[parts] for parts in PARTS)),
    "ogbn-products": (0.02, tuple(BOUNDARIES["ogbn-products"].by_parts[parts] for parts in PARTS)),
    "ogbn-arxiv": (1.0, tuple(BOUNDARIES["ogbn-arxiv"].by_parts[parts] for parts in PARTS)),
    "ogbn-papers100m": (0.005, tuple(BOUNDARIES["ogbn-papers100m"].by_parts[parts] for parts in PARTS)),
    "pubmed": (1.0, tuple(BOUNDARIES["pubmed"].by_parts[parts] for parts in PARTS)),
    "yelp": (0.05, (None, BOUNDARIES["yelp"].by_parts[4], BOUNDARIES["yelp"].by_parts[8], None)),
    "flickr": (1.0, (0.639, 1.369, 2.110, 2.892)),
    "cora": (1.0, (0.106, 0.172, 0.280, 0.420)),
    "citeseer": (1.0, (0.017, 0.035, 0.075, 0.134)),
}


@pytest.mark.parametrize("of", tiered(sorted(CUT), ["reddit", "pubmed"]))
def test_twins_are_cut_as_the_sets_are(of):
    scale, wanted = CUT[of]
    graph = make("twin", of=of, scale=scale)
    for parts, share in zip(PARTS, wanted, strict=True):
        if share is None:
            continue
        vector = partition_nodes(graph.indptr, graph.indices, PartitionSpec(parts=parts, objective="cut"))
        owner = sp.csr_matrix((np.ones(graph.nodes), (vector, np.arange(graph.nodes))))
        read = (owner @ adjacency(graph)).toarray() > 0
        other = vector[None, :] != np.arange(parts)[:, None]
        rows = (read & other).sum(1)
        # Of citeseer's two parts 57 nodes are boundary.
        assert rows.sum() / graph.nodes == pytest.approx(share, rel=0.15, abs=0.01)
        assert rows.max() / rows.mean() < 2.5


def test_degree_rule_of_scaled_twins():
    """Mean degree min(d, max(d sqrt(s), 10), nodes / (1.5 classes)), said in the note when it binds."""
    info = generators()["twin"].info
    real = published()["reddit"].info
    mean = real.edges / real.nodes
    assert info({"scale": 1.0}).edges == real.edges
    assert info({"scale": 0.25}).edges / info({"scale": 0.25}).nodes == pytest.approx(mean / 2, rel=1e-4)
    assert info({"scale": 0.0015}).edges / 349 == pytest.approx(349 / 61.5, rel=1e-2)
    assert info({"of": "ogbn-arxiv", "scale": 0.05}).edges / 8467 == pytest.approx(10, rel=1e-3)
    assert info({"of": "cora", "scale": 0.5}).edges / 1354 == pytest.approx(10556 / 2708, rel=1e-3)
    assert "mean degree 246" in info({"scale": 0.25}).summary
    assert info({"scale": 1.0}).summary == "twin of reddit, scale 1 (generated)"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "options"),
    [("sbm", {}), ("twin", {}), ("twin", {"of": "ogbn-arxiv", "scale": 0.03}), ("twin", {"of": "cora", "scale": 1.0})],
)
def test_neighbours_help_but_features_say_something(name, options):
    """A linear model: on own features better than chance and below 80 %, on the neighbours' mean clearly better."""
    from sklearn.linear_model import RidgeClassifier

    graph = make(name, **options)
    mean = sp.diags(1 / np.diff(graph.indptr)) @ adjacency(graph)
    once = mean @ graph.features
    score = {}
    for key, inputs in {"own": graph.features, "neighbours": once, "two hops": mean @ once}.items():
        model = RidgeClassifier(alpha=1.0).fit(inputs[graph.train_mask], graph.labels[graph.train_mask])
        score[key] = model.score(inputs[graph.test_mask], graph.labels[graph.test_mask])
    largest = np.bincount(graph.labels[graph.test_mask]).max() / graph.test_mask.sum()
    assert 1.2 * largest < score["own"] < 0.8
    best = max(score["neighbours"], score["two hops"])
    assert score["own"] + 0.15 < best < 0.99


def test_features_can_be_left_on_disk(tmp_path):
    whole, mapped = make("twin", scale=0.005), make("twin", scale=0.005, work=tmp_path)
    assert isinstance(mapped.features, np.memmap)
    assert np.array_equal(np.load(tmp_path / "features.npy"), whole.features)


def test_label_sets_follow_communities():
    graph = make("twin", of="ppi", scale=0.2)
    assert graph.labels.shape == (2951, 121)
    share = graph.labels.mean()
    assert 0.05 < share < 0.25
    assert graph.labels.any(axis=0).all()
    # ends of an edge share labels more often than any two nodes do
    rows = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    labels = graph.labels.astype(float)
    joined = (labels[rows] * labels[graph.indices]).sum(1).mean()
    assert joined > 1.5 * (labels.mean(0) ** 2).sum()


@pytest.mark.slow
def test_youtubes_twin_is_made_of_groups():
    """Few memberships, of users alone; neighbours' tell more of a user's labels than its own do."""
    from sklearn.linear_model import Ridge
    from sklearn.metrics import average_precision_score

    graph = make("twin", of="youtube", scale=0.01)
    users = graph.train_mask | graph.val_mask | graph.test_mask
    assert users.mean() == pytest.approx(94_238 / 1_138_499, rel=0.01)
    assert not graph.labels[~users].any()
    assert not graph.features[~users].any()
    assert set(np.unique(graph.features)) == {0, 1}
    assert graph.features[users].sum(1).mean() == pytest.approx(3.1, rel=0.1)  # of the real set
    assert graph.labels[users].sum(1).mean() == pytest.approx(0.93, rel=0.1)
    degree = np.diff(graph.indptr)
    assert degree[users].mean() > 2 * degree[~users].mean()

    inputs = graph.features
    loops = adjacency(graph) + sp.identity(graph.nodes)
    mean = sp.diags(1 / (degree + 1)) @ loops
    precision = []
    for _ in range(3):
        model = Ridge(alpha=1.0).fit(inputs[graph.train_mask], graph.labels[graph.train_mask])
        held = graph.val_mask | graph.test_mask
        score = model.predict(inputs[held])
        precision.append(average_precision_score(graph.labels[held].ravel(), score.ravel()))
        inputs = mean @ inputs
    assert precision[0] > 2 * graph.labels[users].mean()
    assert precision[2] > 1.5 * precision[0]
