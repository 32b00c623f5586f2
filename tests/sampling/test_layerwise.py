"""Layer-wise samplers against a dense matrix, exact inclusion probabilities and exact variances."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any, get_args

import numpy as np
import pytest
import torch
from harness_methods.fastgcn import GlobalSampler
from harness_methods.skewed import Skew
from scipy import stats

from harness.graph.block import MEAN, SYMMETRIC, Propagation
from harness.graph.csr import Topology
from harness.graph.kernels import stream, uniform
from harness.sampling.layer_kernels import inclusion
from harness.sampling.layerwise import LayerBatch, Layers, LayerSampler
from harness.sampling.sample import LayerSample, Tables, propagation_scales

NODES, ISOLATED = 60, 7
DRAWS = 3000
NORMS: list[Propagation] = [MEAN, SYMMETRIC]
LAYERS: tuple[Layers, ...] = get_args(Layers)


class Directed:
    """A random directed graph, one node without neighbours, its dense A, and which nodes are local."""

    def __init__(self, weighted: bool, norm: Propagation, nodes: int = NODES, degree: float = 6) -> None:
        rng = np.random.default_rng(nodes)
        present = rng.random((nodes, nodes)) < degree / nodes * rng.uniform(0.2, 1.8, nodes)
        np.fill_diagonal(present, False)
        present[ISOLATED] = False
        weights = rng.uniform(0.1, 2, (nodes, nodes)).astype(np.float32) if weighted else np.ones_like(present)
        indptr = np.concatenate([[0], np.cumsum(present.sum(1))]).astype(np.int64)
        indices = np.nonzero(present)[1].astype(np.int32)
        self.topology = Topology(indptr, indices, weights[present] if weighted else None)
        self.edge = np.where(present, weights, 0).astype(np.float64)
        left, right = propagation_scales(self.topology, norm)
        self.matrix = left[:, None] * self.edge * (1 if right is None else right)
        self.norm: Propagation = norm
        self.tables = Tables(nodes)
        self.local = rng.random(nodes) < 0.4

    def sampler(self, **options: Any) -> LayerSampler:
        return LayerSampler(self.topology, self.norm, self.tables, local=self.local, **options)

    def fastgcn(self, layers: Layers = "nested", reads_own: bool = True) -> GlobalSampler:
        return GlobalSampler(self.topology, self.norm, self.tables, reads_own=reads_own, layers=layers)

    @property
    def loops(self) -> np.ndarray:
        """The self loops of A, [N]."""
        left, right = propagation_scales(self.topology, self.norm)
        return np.zeros(left.size) if right is None else left * right

    def own_squares(self, layers: Layers, reads_own: bool) -> np.ndarray:
        """What own rows and self loops add to the weight of a destination's draw, [N]."""
        return (self.loops**2 + reads_own) * (layers != "nested")

    def dense(self, layer: LayerSample) -> np.ndarray:
        """The propagation weights [num_dst, N] of the drawn edges, without self loops."""
        out = np.zeros((layer.num_dst, self.local.size))
        rows = np.repeat(np.arange(layer.num_dst), np.diff(layer.indptr))
        values = np.ones(layer.indices.size) if layer.values is None else layer.values
        np.add.at(out, (rows, layer.sources[layer.indices]), values)
        assert np.count_nonzero(out) == layer.indices.size, "an edge is there once, and counts something"
        left, right = propagation_scales(self.topology, self.norm)
        scale = left[layer.destinations] * (1 if layer.dst_scale is None else layer.dst_scale)
        return scale[:, None] * out * (1 if right is None else right)


def drawn_nodes(layer: LayerSample) -> np.ndarray:
    """Nodes that an edge leads from."""
    return np.unique(layer.sources[layer.indices])


def expected(
    graph: Directed,
    destinations: np.ndarray,
    size: int,
    skew: Skew | None,
    local_only: bool,
    own: np.ndarray | None = None,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Which nodes are candidates, alpha, and the weights of the draw, by the definitions; `own` as `own_squares`."""
    squares = (graph.matrix[destinations] ** 2).sum(0)
    if own is not None:
        squares[destinations] += own[destinations]
    candidates = (squares > 0) & (graph.local | (not local_only))
    q = np.where(candidates, squares, 0)
    near, far = candidates & graph.local, candidates & ~graph.local
    alpha = 1.0
    if skew is not None:
        alpha = skew.alpha_of(near.sum(), far.sum(), float(q[near].sum()), float(q[far].sum()), size)
    return candidates, alpha, np.where(graph.local, alpha, 1) * q


VERSIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "skewed": {"skew": Skew("formula", 4)},
    "quadratic": {"skew": Skew("quadratic", 4)},
    "local": {"local_only": True},
}


def draw_number(seed: int, depth: int, node: int) -> float:
    """The number of a node that decides on it in a layer of a batch."""
    return float(uniform(np.uint64(stream(np.int64(stream(seed, depth) >> np.uint64(1)), node))))


@pytest.mark.quick(8)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layers", ["paper", "public"])
def test_a_layer_reads_what_was_drawn(version: str, norm: Propagation, weighted: bool, layers: Layers) -> None:
    """Destinations are the sources of the layer above. Own rows, self loops and edges by the nodes' own numbers."""
    graph, reads_own = Directed(weighted, norm, nodes=300, degree=20), norm is MEAN
    options = VERSIONS[version]
    sampler = graph.sampler(layers=layers, reads_own=reads_own, **options)
    skew, local_only = options.get("skew"), options.get("local_only", False)
    missing = 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        targets = rng.permutation(np.flatnonzero(graph.local) if local_only else 300)[:9].astype(np.int64)
        sizes = [-1, 30, 60, 20]
        batch = sampler.sample(targets, sizes, seed)
        destinations = targets
        for depth, (layer, size) in enumerate(zip(batch.layers[::-1], sizes[::-1], strict=True)):
            np.testing.assert_array_equal(layer.destinations, destinations)
            own_squares = graph.own_squares(layers, reads_own)
            found = expected(graph, destinations, size, skew, local_only, own_squares)
            candidates, weights = found[0], found[2]
            assert (batch.candidates[-1 - depth], batch.alphas[-1 - depth]) == (
                candidates.sum(),
                pytest.approx(found[1], rel=1e-12),
            )
            p = inclusion(weights, candidates.sum() if size < 0 else size)
            drawn = np.array([draw_number(seed, depth, node) < p[node] for node in range(300)])
            if layers == "public":
                drawn[targets], p[targets] = True, 1
                np.testing.assert_array_equal(layer.sources[: targets.size], targets)
            np.testing.assert_array_equal(np.sort(layer.sources), np.flatnonzero(drawn))
            inverse = np.divide(1, p, out=np.zeros(300), where=drawn)
            np.testing.assert_allclose(graph.dense(layer), graph.matrix[destinations] * inverse, rtol=1e-12)
            own = layer.own
            assert own is not None
            np.testing.assert_array_equal(own.at, np.flatnonzero(drawn[destinations]))
            np.testing.assert_array_equal(layer.sources[own.rows], destinations[own.at])
            np.testing.assert_allclose(own.scale, inverse[destinations[own.at]], rtol=1e-12)
            np.testing.assert_allclose(own.loop, inverse[destinations[own.at]], rtol=1e-12)
            missing += destinations.size - own.at.size
            destinations = layer.sources
    assert missing > 20


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("layers", ["paper", "public"])
def test_fastgcn_reads_what_was_drawn(norm: Propagation, layers: Layers) -> None:
    """As above; one weight for all layers, and what is drawn without an edge or own row to count is no source."""
    graph, reads_own = Directed(True, norm, nodes=300, degree=20), norm is MEAN
    sampler = graph.fastgcn(layers, reads_own)
    p = inclusion((graph.matrix**2).sum(0) + graph.own_squares(layers, reads_own), 40)
    for seed in range(5):
        targets = destinations = np.random.default_rng(seed).permutation(300)[:30].astype(np.int64)
        for depth, layer in enumerate(sampler.sample(targets, [40, 40, 40], seed).layers[::-1]):
            np.testing.assert_array_equal(layer.destinations, destinations)
            drawn = np.array([draw_number(seed, depth, node) < p[node] for node in range(300)])
            inverse = np.divide(1, p, out=np.zeros(300), where=drawn)
            if layers == "public":
                inverse[targets] = 1
            of_use = (graph.matrix[destinations] != 0).any(0)
            of_use[destinations] = True
            of_use &= inverse > 0
            of_use[targets] |= layers == "public"
            np.testing.assert_array_equal(np.sort(layer.sources), np.flatnonzero(of_use))
            np.testing.assert_allclose(graph.dense(layer), graph.matrix[destinations] * inverse, rtol=1e-12)
            own = layer.own
            assert own is not None
            np.testing.assert_array_equal(own.at, np.flatnonzero(inverse[destinations]))
            np.testing.assert_array_equal(layer.sources[own.rows], destinations[own.at])
            for counts in (own.scale, own.loop):
                np.testing.assert_allclose(counts, inverse[destinations[own.at]], rtol=1e-12)
            destinations = layer.sources


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_layer_is_what_its_definition_says(version: str, norm: Propagation, weighted: bool) -> None:
    """Candidates, alpha and p by the dense matrix; all edges from drawn nodes, and no others."""
    graph = Directed(weighted, norm, nodes=300, degree=20)
    options = VERSIONS[version]
    sampler = graph.sampler(layers="nested", **options)
    skew, local_only = options.get("skew"), options.get("local_only", False)
    for seed in range(5):
        targets = np.random.default_rng(seed).permutation(300)[:9].astype(np.int64)
        sizes = [-1, 160, 90, 20]
        batch = sampler.sample(targets, sizes, seed)
        destinations = targets
        upwards = list(zip(batch.layers, sizes, batch.alphas, batch.candidates, strict=True))[::-1]
        for layer, size, alpha, count in upwards:
            np.testing.assert_array_equal(layer.destinations, destinations)
            assert np.unique(layer.sources).size == layer.sources.size
            candidates, true_alpha, weights = expected(graph, destinations, size, skew, local_only)
            assert count == candidates.sum()
            assert alpha == pytest.approx(true_alpha, rel=1e-12)
            drawn = drawn_nodes(layer)
            assert candidates[drawn].all()
            new = layer.sources[layer.num_dst :]
            np.testing.assert_array_equal(np.setdiff1d(drawn, destinations), np.sort(new))
            p = inclusion(weights, count if size < 0 else size)
            whole = np.zeros((destinations.size, 300))
            whole[:, drawn] = graph.matrix[np.ix_(destinations, drawn)] / p[drawn]
            np.testing.assert_allclose(graph.dense(layer), whole, rtol=1e-12)
            destinations = layer.sources


@pytest.mark.parametrize("estimator", ["poisson", "ladies"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [-1, NODES])
@pytest.mark.parametrize("layers", LAYERS)
def test_everything_drawn_is_the_whole_aggregation(
    estimator: Any, norm: Propagation, weighted: bool, size: int, layers: Layers
) -> None:
    graph = Directed(weighted, norm)
    targets = np.array([ISOLATED, 3, 50, 20])
    h = np.random.default_rng(1).normal(size=(NODES, 3))
    for sampler in (graph.sampler(estimator=estimator, skew=Skew("formula", 8), layers=layers), graph.fastgcn(layers)):
        for layer in sampler.sample(targets, [size, size], 0).layers:
            block = layer.block(graph.topology, device=torch.device("cpu"), dtype=torch.float64)
            rows = torch.from_numpy(h[layer.sources])
            out = block.aggregate(rows, norm).numpy()
            whole = graph.matrix @ h + graph.loops[:, None] * h
            np.testing.assert_allclose(out, whole[layer.destinations], atol=1e-12)
            np.testing.assert_array_equal(block.own_rows(rows).numpy(), h[layer.destinations])
            assert (layer.values is None) == (not weighted)
            assert layer.dst_scale is None


Sample = Callable[[int], LayerBatch]


def one_layer(graph: Directed, kind: str) -> tuple[Sample, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A sampler of one layer of size 9, its targets, q, the weights of the draw, and p."""
    targets = np.arange(0, NODES, 4)
    if kind == "fastgcn":
        sampler: Any = graph.fastgcn()
        q = weights = (graph.matrix**2).sum(0)
    else:
        skew = Skew("formula", 4) if kind == "skewed" else None
        sampler = graph.sampler(skew=skew, layers="nested")
        _, alpha, weights = expected(graph, targets, 9, skew, False)
        q = weights / np.where(graph.local, alpha, 1)
    return lambda seed: sampler.sample(targets, [9], seed), targets, q, weights, inclusion(weights, 9)


@pytest.mark.quick(1)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["ladies", "skewed", "fastgcn"])
def test_poisson_draws(kind: str, norm: Propagation) -> None:
    """How often each node is drawn, how the number of drawn ones varies, and the estimate of A h: its mean is
    right, and its variance is sum_ij A_ij^2 h_j^2 (1/p_j - 1)."""
    graph = Directed(True, norm)
    sample, targets, _, _, p = one_layer(graph, kind)
    matrix = graph.matrix[targets]
    seen = (matrix != 0).any(0)
    h = np.random.default_rng(2).uniform(-1, 1, NODES)
    drawn, estimate = np.zeros((DRAWS, NODES), bool), np.zeros((DRAWS, targets.size))
    for seed in range(DRAWS):
        layer = sample(seed).layers[0]
        drawn[seed, drawn_nodes(layer)] = True
        estimate[seed] = graph.dense(layer) @ h
    some = seen & (p < 1)
    assert some.sum() > 15
    assert drawn[:, seen & (p == 1)].all()
    assert not drawn[:, ~seen].any()
    p_some = p[some]
    z = (drawn[:, some].sum(0) - DRAWS * p_some) / np.sqrt(DRAWS * p_some * (1 - p_some))
    assert stats.chi2.sf(np.sum(z**2), some.sum()) > 1e-4
    number = drawn[:, some].sum(1)
    assert number.var() == pytest.approx(np.sum(p_some * (1 - p_some)), rel=0.15)
    noise = np.divide(1 - p, p, out=np.zeros(NODES), where=seen)
    exact = (matrix**2 * h**2) @ noise
    some_rows = exact > 0
    z = (estimate.mean(0) - matrix @ h)[some_rows] / np.sqrt(exact[some_rows] / DRAWS)
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(estimate[:, ~some_rows], np.tile(matrix @ h, (DRAWS, 1))[:, ~some_rows])
    measured = estimate.var(0).sum()
    assert measured == pytest.approx(exact.sum(), rel=0.15)


def test_the_measured_variance_is_within_equations_9_and_11() -> None:
    """h of norm 1; see tests/methods/test_skewed.py for the bounds."""
    graph = Directed(True, MEAN)
    h = np.where(np.random.default_rng(3).random(NODES) < 0.5, 1.0, -1.0)
    measured = {}
    for kind in ("ladies", "skewed"):
        sample, _, q, weights, _ = one_layer(graph, kind)
        estimate = np.array([graph.dense(sample(seed).layers[0]) @ h for seed in range(DRAWS)])
        measured[kind] = estimate.var(0).sum()
        n, candidates = np.count_nonzero(q), q > 0
        spread = np.sum(q[candidates] / weights[candidates])
        assert measured[kind] <= 1.1 * (weights.sum() * spread / 9 - q.sum())
        assert measured[kind] <= 1.1 * (4 if kind == "skewed" else 1) * (n / 9 - 1) * q.sum()
    assert measured["skewed"] > measured["ladies"]


def test_successive_draws_by_enumeration() -> None:
    """All samples of three of seven candidates; the chance of one sums those of the orders to draw it in."""
    graph = Directed(True, SYMMETRIC, nodes=12, degree=8)
    sampler = graph.sampler(estimator="ladies", layers="nested")
    targets = np.array([1, 5])
    _, _, weights = expected(graph, targets, 3, None, False)
    candidates = np.flatnonzero(weights)
    assert candidates.size == 7
    chance: dict[frozenset[int], float] = {}
    for order in permutations(candidates.tolist(), 3):
        left, product = weights.sum(), 1.0
        for node in order:
            product *= weights[node] / left
            left -= weights[node]
        chance[frozenset(order)] = chance.get(frozenset(order), 0) + product
    assert sum(chance.values()) == pytest.approx(1)
    count = dict.fromkeys(chance, 0)
    for seed in range(2 * DRAWS):
        (layer,) = sampler.sample(targets, [3], seed).layers
        count[frozenset(drawn_nodes(layer).tolist())] += 1
    assert stats.chisquare(list(count.values()), 2 * DRAWS * np.array(list(chance.values()))).pvalue > 1e-4


def test_successive_draws_are_those_of_the_shortest_waits() -> None:
    """None is missed for a wait that looked too long: all waits, from the nodes' own numbers."""
    graph = Directed(True, MEAN)
    sampler = graph.sampler(estimator="ladies", layers="nested")
    for seed in range(400):
        targets, size = np.random.default_rng(seed).permutation(NODES)[:2].astype(np.int64), seed % 3 + 1
        _, _, weights = expected(graph, targets, size, None, False)
        candidates = np.flatnonzero(weights)
        if size >= candidates.size:
            continue
        layer_seed = np.int64(stream(seed, 0) >> np.uint64(1))
        numbers = np.array([uniform(np.uint64(stream(layer_seed, node))) for node in candidates])
        shortest = candidates[np.argsort(-np.log1p(-numbers) / weights[candidates])[:size]]
        np.testing.assert_array_equal(drawn_nodes(sampler.sample(targets, [size], seed).layers[0]), np.sort(shortest))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("local_only", [False, True])
def test_ladies_rows_keep_their_sums(norm: Propagation, local_only: bool) -> None:
    """`size` nodes; w / (s pi), rows scaled to the sum over all candidates; a row may have nothing drawn."""
    graph = Directed(True, norm)
    sampler = graph.sampler(estimator="ladies", local_only=local_only, layers="nested")
    whole = graph.matrix * (graph.local | (not local_only))
    empty = 0
    for seed in range(50):
        targets = np.random.default_rng(seed).permutation(NODES)[:10].astype(np.int64)
        batch = sampler.sample(targets, [7, 5], seed)
        for layer, size in zip(batch.layers, [7, 5], strict=True):
            drawn, rows = drawn_nodes(layer), layer.destinations
            assert drawn.size == size
            sampled = graph.dense(layer)
            some = sampled.any(1)
            np.testing.assert_allclose(sampled.sum(1)[some], whole[rows].sum(1)[some], rtol=1e-12)
            assert not whole[np.ix_(rows[~some], drawn)].any()
            _, _, weights = expected(graph, rows, size, None, local_only)
            raw = np.zeros_like(sampled)
            raw[:, drawn] = whole[np.ix_(rows, drawn)] * weights.sum() / weights[drawn] / size
            assert layer.dst_scale is not None
            np.testing.assert_allclose(sampled, raw * layer.dst_scale[:, None], rtol=1e-12)
            empty += np.count_nonzero(~some)
    assert empty


@pytest.mark.parametrize("layers", ["paper", "public"])
@pytest.mark.parametrize("norm", NORMS)
def test_ladies_rows_keep_their_sums_with_self_loops(norm: Propagation, layers: Layers) -> None:
    """Rows of A with its self loops are scaled to their sums; what public code adds counts as if drawn."""
    graph = Directed(True, norm)
    sampler = graph.sampler(estimator="ladies", layers=layers, reads_own=False)
    whole = graph.matrix + np.diag(graph.loops)
    for seed in range(50):
        targets = np.random.default_rng(seed).permutation(NODES)[:10].astype(np.int64)
        batch = sampler.sample(targets, [7, 5], seed)
        for layer, size in zip(batch.layers, [7, 5], strict=True):
            rows, drawn = layer.destinations, layer.sources
            assert drawn.size == size if layers == "paper" else size <= drawn.size <= size + 10
            own = layer.own
            assert own is not None
            sampled = graph.dense(layer)
            sampled[own.at, rows[own.at]] += graph.loops[rows[own.at]] * own.loop
            _, _, weights = expected(graph, rows, size, None, False, graph.own_squares(layers, False))
            raw = np.zeros_like(sampled)
            possible = drawn[weights[drawn] > 0]
            raw[:, possible] = whole[np.ix_(rows, possible)] * weights.sum() / weights[possible] / size
            some = raw.any(1)
            normalised = raw[some] / raw[some].sum(1, keepdims=True) * whole[rows[some]].sum(1, keepdims=True)
            np.testing.assert_allclose(sampled[some], normalised)
            assert not sampled[~some].any()
            np.testing.assert_array_equal(own.scale, 1)


def make(graph: Directed, kind: str, layers: Layers = "paper") -> LayerSampler | GlobalSampler:
    if kind == "fastgcn":
        return graph.fastgcn(layers)
    return graph.sampler(skew=Skew("formula", 4), estimator=kind, layers=layers)


KINDS = ["poisson", "ladies", "fastgcn"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", LAYERS)
def test_no_targets_no_neighbours_no_size(kind: str, layers: Layers) -> None:
    graph = Directed(False, SYMMETRIC)
    sampler = make(graph, kind, layers)
    nobody = sampler.sample(np.empty(0, np.int64), [3, 3], 0)
    alone = sampler.sample(np.array([ISOLATED]), [-1, -1], 0)
    nothing = sampler.sample(np.arange(4), [0, 0], 0)
    for batch, count in ((nobody, 0), (alone, 1), (nothing, 4)):
        assert len(batch.layers) == len(batch.alphas) == len(batch.candidates) == 2
        for depth, layer in enumerate(batch.layers[::-1]):
            sources = 0 if batch is nothing and layers == "paper" else count
            assert layer.sources.size == sources
            assert layer.num_dst == (sources if depth else count)
            if layers == "nested" or batch is not nothing:
                assert layer.indices.size == 0
            assert layer.sources.dtype == layer.indptr.dtype == np.int64
            assert layer.indices.dtype == np.int32
            block = layer.block(graph.topology, device=torch.device("cpu"), dtype=torch.float32)
            assert block.aggregate(torch.ones(sources, 2), SYMMETRIC).shape == (layer.num_dst, 2)
            assert block.own_rows(torch.ones(sources, 2)).shape == (layer.num_dst, 2)
    if kind != "fastgcn":
        assert nobody.candidates == [0, 0]
        assert alone.candidates == ([0, 0] if layers == "nested" else [1, 1])


def test_neighbours_of_weight_0_are_no_candidates() -> None:
    topology = Topology(np.array([0, 3, 3, 3, 3]), np.array([1, 2, 3], np.int32), np.array([0, 1, 2], np.float32))
    graph = topology, MEAN, Tables(4)
    for sampler in (
        LayerSampler(*graph, layers="nested"),
        LayerSampler(*graph, layers="public", reads_own=False),
        GlobalSampler(*graph, layers="nested", reads_own=True),
    ):
        batch = sampler.sample(np.array([0]), [2], 0)
        assert batch.candidates == [2]
        assert sorted(batch.layers[0].sources) == [0, 2, 3]


@pytest.mark.quick(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", LAYERS)
def test_batches_are_the_same_in_any_thread_and_order(kind: str, layers: Layers) -> None:
    graph = Directed(True, SYMMETRIC)
    sampler = make(graph, kind, layers)

    def draw(seed: int) -> list[bytes]:
        targets = np.random.default_rng(seed).permutation(NODES)[: seed % 20].astype(np.int64)
        layers = sampler.sample(targets, [9, 6, 5], seed).layers
        arrays = [array for x in layers for array in (x.sources, x.indptr, x.indices, x.values, x.dst_scale)]
        return [b"" if array is None else array.tobytes() for array in arrays]

    alone = [draw(seed) for seed in range(200)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, reversed(range(200))))
    assert together[::-1] == alone
    assert len({tuple(batch) for batch in alone[1:20]}) == 19


def test_a_draw_depends_on_seed_layer_node_and_chance_alone() -> None:
    """With other targets, what had no smaller chance is drawn again; not so in another layer or batch."""
    graph = Directed(True, MEAN)
    sampler, changed = graph.sampler(layers="nested"), 0
    for seed in range(100):
        few, many = np.arange(8), np.arange(16)[::-1].copy()
        p_few, p_many = (inclusion(expected(graph, x, 9, None, False)[2], 9) for x in (few, many))
        first, second = (drawn_nodes(sampler.sample(x, [9], seed).layers[0]) for x in (few, many))
        assert np.isin(first[p_many[first] >= p_few[first]], second).all()
        assert np.isin(second[p_few[second] >= p_many[second]], first).all()
        below = drawn_nodes(sampler.sample(few, [9, 0], seed).layers[0])
        other = drawn_nodes(sampler.sample(few, [9], seed + 1).layers[0])
        changed += not np.array_equal(below, first)
        changed += not np.array_equal(other, first)
    assert changed > 190


def test_arguments_out_of_range() -> None:
    graph = Directed(False, MEAN)
    for options in ({"skew": Skew("formula", 4)}, {"local_only": True}):
        with pytest.raises(ValueError, match="local"):
            LayerSampler(graph.topology, MEAN, graph.tables, **options)
