"""Cooperative batches: the ranks' draws are one rank's on all targets, and a step is that of a dense simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.cooperative import Cooperative, CooperativeOptions
from numpy.typing import NDArray
from pydantic import ValidationError
from support.owners import train_on_own_rows
from support.ranks import run_ranks
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.check import oracle
from harness.check.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankOutcome, outcome, train
from harness.data.graph import GraphData
from harness.graph.csr import Topology
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec
from harness.sampling.labor import draw_labor
from harness.sampling.neighbours import draw_neighbours, sample_layers
from harness.sampling.sample import Sample, Tables

NODES, FEATURES, HIDDEN, ITEM, EPOCHS, WORLDS = 60, 7, 6, 8, 2, (1, 2, 3, 4)
GRAPHS = {kind: random_graph(91, NODES, degree=7, features=FEATURES, weighted=kind == "weighted")
          for kind in ("plain", "weighted")}  # fmt: skip
PARTS = np.random.default_rng(4).integers(0, 12, NODES)  # modulo 1, 2, 3 and 4
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1, optimizer="sgd", lr=0.5)
MODELS = {
    "sage": ModelSpec(name="sage", layers=3, hidden=HIDDEN, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=3, hidden=HIDDEN, dropout=0, residual=True),
    "gat": ModelSpec(name="gat", layers=2, hidden=HIDDEN, heads=2, dropout=0),
    "mixhop": ModelSpec(name="mixhop", layers=1, order=2, hidden=HIDDEN, dropout=0),
}
SMALL = {"batch_size": 3}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {  # graph, model, options
    "sage": ("plain", "sage", SMALL | {"fanouts": [3, 2, 4]}),
    "sage labor": ("plain", "sage", SMALL | {"fanouts": [2, 3, -1], "sampler": "labor"}),
    "gcn": ("weighted", "gcn", SMALL | {"fanouts": 2}),
    "gcn labor": ("weighted", "gcn", SMALL | {"fanouts": 2, "sampler": "labor"}),
    "gat": ("plain", "gat", SMALL | {"fanouts": [3, 2]}),
    "mixhop": ("plain", "mixhop", SMALL | {"fanouts": [3, 2]}),
    "one step": ("plain", "sage", {"batch_size": 0, "fanouts": [2, -1, 2]}),
}
QUICK = (2, "sage")
EVERY = [(world, name) for name in RUNS for world in WORLDS]


@dataclass
class Layer:
    """What a rank has of a layer, by nodes: `held` sources, those that it is `sent`, and edges to -> of [2, E]."""

    held: NDArray[np.int64]
    sent: NDArray[np.int64]
    edges: NDArray[np.int64]


@dataclass
class Drawn:
    """A rank's part of a step: layers, input layer first; its targets, and the seed of all ranks."""

    layers: list[Layer]
    targets: NDArray[np.int64]
    common: int


@dataclass
class Seen:
    """The steps of each epoch, and what came of the training."""

    steps: list[list[Drawn]]
    trained: RankOutcome


def layers_of(sample: Sample) -> Iterator[Layer]:
    for i, layer in enumerate(sample.layers):
        held, sources = np.asarray(sample.held(i)), np.asarray(layer.sources)
        to = np.repeat(np.asarray(layer.destinations), np.diff(np.asarray(layer.indptr)))
        yield Layer(held, sources[held.size :], np.stack([to, sources[np.asarray(layer.indices)]]))


def draw_and_train(rank: int, world: int, cases: list[Case]) -> list[Seen]:
    """Draw what the training draws, with another object, then train."""
    found = []
    for case in cases:
        method, epochs = case.trainer(rank, world).method, list[list[Drawn]]()
        assert isinstance(method, Cooperative)
        assert np.array_equal(method.worker.view.nodes, np.arange(NODES))
        for epoch in range(EPOCHS):
            batches = method.batches(epoch)
            drawn = [list(layers_of(method._draw(b, method.worker.comm).sample)) for b in batches]
            epochs.append([Drawn(layers, b.targets, b.common) for layers, b in zip(drawn, batches, strict=True)])
        method.close()
        found.append(Seen(epochs, outcome(case.trainer(rank, world))))
    return found


def stored(world: int, folder: Path) -> dict[str, OnDisk]:
    found = {}
    for kind, graph in GRAPHS.items():
        (folder / kind).mkdir()
        found[kind] = on_disk(graph, PARTS % world, world, False, folder / kind)
    return found


def cases_of(names: list[str], data: dict[str, OnDisk], **others: Any) -> list[Case]:
    return [
        Case(data[graph], "cooperative", options | others, MODELS[model], SPEC)
        for graph, model, options in (RUNS[name] for name in names)
    ]


class Found(dict[tuple[int, str], list[Seen]]):
    """What each rank saw, by the number of ranks and the run: the quick one alone, the others of a world at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, key: tuple[int, str]) -> list[Seen]:
        world, name = key
        names = [name] if key == QUICK else [each for each in RUNS if (world, each) != QUICK]
        folder = self._folder / "-".join(map(str, key))
        folder.mkdir()
        by_rank = run_ranks(draw_and_train, world, cases_of(names, stored(world, folder)))
        self |= {(world, each): [rank[i] for rank in by_rank] for i, each in enumerate(names)}
        return self[key]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory.mktemp("cooperative"))


def each_run() -> list[Any]:
    return [pytest.param(*run, marks=[] if run == QUICK else pytest.mark.slow) for run in EVERY]


def together(ranks: list[Seen]) -> list[list[tuple[Drawn, ...]]]:
    """Return each epoch's steps, of each what all ranks have."""
    return [list(zip(*epoch, strict=True)) for epoch in zip(*(rank.steps for rank in ranks), strict=True)]


def pairs(edges: NDArray[np.int64]) -> list[int]:
    return sorted((edges[0] * NODES + edges[1]).tolist())


@pytest.mark.parametrize(("world", "name"), each_run())
def test_ranks_draw_what_one_rank_draws_for_all_targets(found: Found, world: int, name: str) -> None:
    kind, _, options = RUNS[name]
    graph = GRAPHS[kind]
    topology = Topology(graph.indptr, graph.indices, graph.weights)
    draw = draw_labor if options.get("sampler") == "labor" else draw_neighbours
    for step in (step for epoch in together(found[world, name]) for step in epoch):
        assert len({rank.common for rank in step}) == 1
        depth = len(step[0].layers)
        fanouts = options["fanouts"] if isinstance(options["fanouts"], list) else [options["fanouts"]] * depth
        one = partial(draw, topology, tables=Tables(NODES))
        alone = sample_layers(one, np.concatenate([rank.targets for rank in step]), fanouts, step[0].common)
        for i, want in enumerate(layers_of(alone)):
            # Lists: what two ranks had would be there twice.
            assert sorted(np.concatenate([rank.layers[i].held for rank in step]).tolist()) == sorted(want.held)
            assert pairs(np.concatenate([rank.layers[i].edges for rank in step], 1)) == pairs(want.edges)
    assert min(len(epoch) for epoch in together(found[world, name])) > (1 if options["batch_size"] else 0)


@pytest.mark.parametrize(("world", "name"), each_run())
def test_a_rank_holds_its_own_nodes_and_is_sent_those_that_it_needs(found: Found, world: int, name: str) -> None:
    owner, sent = PARTS % world, 0
    for rank, seen in enumerate(found[world, name]):
        for drawn in (drawn for epoch in seen.steps for drawn in epoch):
            above = drawn.targets
            for layer in reversed(drawn.layers):
                assert np.array_equal(layer.held[: above.size], above)
                assert set(owner[layer.held]) <= {rank}
                assert set(owner[layer.edges[0]]) <= {rank}
                needed = layer.edges[1][owner[layer.edges[1]] != rank]
                assert sorted(layer.sent.tolist()) == sorted(set(needed.tolist()))
                above, sent = layer.held, sent + layer.sent.size
    assert (sent > 0) == (world > 1)


def matrices(step: tuple[Drawn, ...], graph: GraphData, model: ModelSpec, fanouts: int | list[int]) -> list[Tensor]:
    """Return each layer's dense matrix [N, N] of the edges that all ranks drew, which count deg/k.

    Divided as the model divides: sage's by the degree, those of gcn and mixhop with self loops by the roots of both
    nodes'; gat's are what multiplies the exponentials.
    """
    adjacency, counts = dense_adjacency(graph), np.diff(graph.indptr)
    degree, eye, made = adjacency.sum(1), np.eye(NODES), []
    for i in range(len(step[0].layers)):
        fanout = fanouts[i] if isinstance(fanouts, list) else fanouts
        factor = np.maximum(1, counts / fanout) if fanout > 0 else np.ones(NODES)
        to, of = np.concatenate([rank.layers[i].edges for rank in step], 1)
        drawn = np.zeros((NODES, NODES))
        drawn[to, of] = adjacency[to, of] * factor[to]
        if model.name == "sage":
            drawn /= np.maximum(degree, 1)[:, None]
        elif model.name == "gat":
            drawn += eye
        else:
            drawn = (drawn + eye) / np.sqrt(np.outer(degree + 1, degree + 1))
        made.append(torch.from_numpy(drawn))
    return made


def logits(matrices: list[Tensor], x: Tensor, w: dict[str, Tensor], model: ModelSpec) -> Tensor:
    """Return all nodes' logits [N, C]; right are those whose neighbours were drawn in every layer."""
    if model.name == "mixhop":
        zero, one, two = w["graph_layers.0.weight"].chunk(3, 1)
        hop = matrices[0] @ x
        return x @ zero + hop @ one + matrices[1] @ hop @ two + w["graph_layers.0.bias"]
    h = x
    for i, matrix in enumerate(matrices):
        own = {key.rsplit(".", 1)[1]: value for key, value in w.items() if key.startswith(f"graph_layers.{i}.")}
        last = i + 1 == len(matrices)
        if model.name == "gat":
            heads = oracle.attention(matrix, h @ own["weight"], own["weight_src"], own["weight_dst"])
            out = (heads.mean(1) if last else heads.flatten(1)) + own["bias"]
        else:
            out = matrix @ h @ own["weight"] + own["bias"]
        if model.name == "sage":
            out = out + h @ own["weight_self"]
        if last:
            return out
        if model.residual and h.shape[1] == out.shape[1]:
            out = out + h
        if model.norm == "layer":
            out = oracle.normalised(out, w, i)
        h = out.relu()
    raise AssertionError("no layer")


@pytest.mark.parametrize(("world", "name"), each_run())
def test_training_is_that_of_a_dense_simulation_on_the_edges_of_all_ranks(found: Found, world: int, name: str) -> None:
    kind, model, options = RUNS[name]
    graph, ranks = GRAPHS[kind], found[world, name]
    x, labels = torch.from_numpy(graph.features.astype(np.float64)), torch.from_numpy(graph.labels)
    w = {key: torch.from_numpy(value.copy()).requires_grad_() for key, value in ranks[0].trained.before.items()}
    optimizer = torch.optim.SGD(w.values(), lr=SPEC.lr)
    for epoch, steps in enumerate(together(ranks)):
        total, learnt = 0.0, 0
        for step in steps:
            optimizer.zero_grad()
            targets = torch.from_numpy(np.concatenate([rank.targets for rank in step]))
            made = matrices(step, graph, MODELS[model], options["fanouts"])
            loss = cross_entropy(logits(made, x, w, MODELS[model])[targets], labels[targets])
            loss.backward()
            optimizer.step()
            total, learnt = total + loss.item() * len(targets), learnt + len(targets)
        for rank in ranks:
            assert rank.trained.rows[epoch]["loss"] == pytest.approx(total / learnt, rel=1e-9)
    for rank in ranks:
        for key, value in w.items():
            np.testing.assert_allclose(rank.trained.after[key], value.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("world", "name"), each_run())
def test_bytes_are_those_of_the_edges_between_ranks(found: Found, world: int, name: str) -> None:
    """Counted from the drawn edges: a layer sends a row for each rank and each other's node that its edges start at."""
    _, model, _ = RUNS[name]
    owner, ranks, hops = PARTS % world, found[world, name], 2 if model == "mixhop" else 1
    depth, peers = MODELS[model].layers * hops, 8 * world * (world - 1)
    rows, steps = np.zeros((EPOCHS, depth), int), np.zeros(EPOCHS, int)
    for epoch, of_all in enumerate(together(ranks)):
        steps[epoch] = len(of_all)
        for step in of_all:
            for i in range(depth):
                to, of = np.concatenate([rank.layers[i].edges for rank in step], 1)
                cut = owner[to] != owner[of]
                rows[epoch, i] += len(set(zip(owner[to[cut]].tolist(), of[cut].tolist(), strict=True)))
    widths = [FEATURES if i < hops else HIDDEN for i in range(depth)]
    for epoch in range(EPOCHS):
        sent = {
            purpose: sum(rank.trained.rows[epoch][f"bytes_{purpose}"] for rank in ranks)
            for purpose in ("feature", "embedding", "gradient", "control", "swap")
        }
        row = [int(n) * width * ITEM for n, width in zip(rows[epoch], widths, strict=True)]
        control = 4 * int(rows[epoch].sum()) + peers * depth * int(steps[epoch])
        rows_of = {"feature": row[0], "embedding": sum(row[1:]), "gradient": sum(row[hops:])}
        assert sent == rows_of | {"control": control, "swap": 0}
        stats = [rank.trained.rows[epoch]["stats"] for rank in ranks]
        assert [sum(each[f"halo_layer{i}"] for each in stats) for i in range(depth)] == rows[epoch].tolist()
        for i in range(depth):
            held = sum(rank.layers[i].held.size for step in together(ranks)[epoch] for rank in step)
            assert sum(each[f"nodes_layer{i}"] for each in stats) == held
        assert sum(each["input_nodes"] for each in stats) == sum(each["nodes_layer0"] for each in stats)
        assert sum(each["remote_nodes"] for each in stats) == 0


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_reads_the_neighbours_of_its_own_nodes_alone(world: int, tmp_path: Path) -> None:
    data, names = stored(world, tmp_path), list(RUNS)
    cases = cases_of(names, data)
    for whole, own in zip(run_ranks(train, world, cases), run_ranks(train_on_own_rows, world, cases), strict=True):
        for one, other in zip(whole, own, strict=True):
            assert [row["loss"] for row in one.rows] == [row["loss"] for row in other.rows]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cache": "degree"}, "cache: a rank reads its own nodes' features alone"),
        ({"feature_rate": 0.5}, "feature_rate: rows are exchanged whole"),
        ({"topology": "owner"}, "topology"),
        ({"importance": 1}, "importance"),
    ],
)
def test_options_that_would_be_without_effect_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        CooperativeOptions(**given)
