"""Every method trains on a device whose memory is not the host's, and the host waits for it only where it has to.

The device is made of host memory (tests/support/fake_device.py). What it cannot show is how fast a GPU is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.on_device import FAULTS, OnDevice, train_on_both, train_with_fault
from support.ranks import run_ranks
from support.tiers import Batches, tiered

from harness.check.graphs import TinyGraphs
from harness.check.training import Case, RankError, RankOutcome, rank_group
from harness.models.layer import ModelSpec
from harness.runtime.integrity import LOOKED_AT
from harness.runtime.method import METHODS as REGISTERED
from harness.runtime.run_config import TrainSpec

RTOL = 1e-9  # float64; orders of summation differ
SPEC = TrainSpec(epochs=2, precision="float64", threads=1)
MODELS = {
    "sage": ModelSpec(name="sage", layers=2, hidden=6, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=6, dropout=0),
    "gat": ModelSpec(name="gat", layers=2, hidden=6, heads=2, dropout=0),
}
DGS = {"fanouts": 2, "batch_size": 4, "period": 2, "explain": "inline"}
HOST = "graphsage of host ahead"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {}),
    "full packed": ("full", {"codec": "int4", "feedback": True}),
    "full precomputed": ("full", {"precompute": True, "transform_before_exchange": True}),
    "bns-gcn": ("bns-gcn", {"rate": 0.5}),
    "bns-gcn fixed": ("bns-gcn", {"rate": 0.5, "sampler": "fixed"}),
    "cagnet": ("cagnet", {}),
    "cagnet sampled": ("cagnet", {"rate": 0.5}),
    "roc": ("roc", {"budget_share": 0.7}),
    "local": ("local", {}),
    "adaqp": ("adaqp", {"period": 1}),
    "pipegcn": ("pipegcn", {"smoothing": True}),
    "psc-gcn": ("psc-gcn", {"rate": 0.5, "cache": "inclusion"}),
    "psc-gcn uncached": ("psc-gcn", {"rate": 0.5, "cache": "none", "refresh": 1, "uniform": 0.3}),
    "graphsage": ("graphsage", {"fanouts": 3, "batch_size": 4}),
    "graphsage ahead": ("graphsage", {"fanouts": 3, "batch_size": 4, "prefetch": 2, "cache": "degree"}),
    "graphsage asking": ("graphsage", {"fanouts": 3, "batch_size": 4, "topology": "owner"}),
    "graphsage asking ahead": ("graphsage", {"fanouts": 3, "batch_size": 4, "topology": "owner", "prefetch": 2}),
    "graphsage alone": ("graphsage", {"fanouts": 3, "batch_size": 4, "scope": "local"}),
    "graphsage labor": ("graphsage", {"fanouts": 3, "batch_size": 4, "sampler": "labor"}),
    "graphsage labor ahead": ("graphsage", {"fanouts": [3, -1], "batch_size": 4, "sampler": "labor", "prefetch": 2}),
    "graphsage important": ("graphsage", {"fanouts": 3, "batch_size": 4, "sampler": "labor", "importance": 2}),
    "graphsage of less": ("graphsage", {"fanouts": 3, "batch_size": 4, "feature_rate": 0.6}),
    "graphsage of host": ("graphsage", {"fanouts": 3, "batch_size": 4, "feature_rate": 0.6, "storage": "host"}),
    HOST: (
        "graphsage",
        {"fanouts": 3, "batch_size": 4, "storage": "host", "prefetch": 2, "cache": "degree", "capacity": 0.3},
    ),
    "graphsage of disk": (
        "graphsage",
        {"fanouts": 3, "batch_size": 4, "storage": "disk", "prefetch": 2, "cache": "degree", "capacity": 0.3},
    ),
    "cooperative": ("cooperative", {"fanouts": 3, "batch_size": 4}),
    "cooperative labor ahead": ("cooperative", {"fanouts": 3, "batch_size": 4, "sampler": "labor", "prefetch": 2}),
    "cooperative of host": ("cooperative", {"fanouts": 3, "batch_size": 4, "storage": "host"}),
    "p3": ("p3", {"fanouts": 3, "batch_size": 4}),
    "p3 ahead": ("p3", {"fanouts": 3, "batch_size": 4, "prefetch": 2}),
    "fastgcn": ("fastgcn", {"sizes": 20, "batch_size": 4}),
    "fastgcn ahead": ("fastgcn", {"sizes": 20, "batch_size": 4, "layers": "public", "prefetch": 2, "cache": "degree"}),
    "ladies": ("ladies", {"sizes": 6, "batch_size": 4}),
    "ladies nested": ("ladies", {"sizes": 6, "batch_size": 4, "layers": "nested", "prefetch": 2}),
    "ladies poisson": ("ladies", {"sizes": 6, "batch_size": 4, "layers": "public", "estimator": "poisson"}),
    "ladies asking": ("ladies", {"sizes": 6, "batch_size": 4, "topology": "owner"}),
    "skewed": ("skewed", {"sizes": 6, "batch_size": 4}),
    "skewed local": ("skewed", {"sizes": 6, "batch_size": 4, "version": "local", "cache": "degree"}),
    "skewed subgraphs": ("skewed", {"base": "saint", "size": 14, "prefetch": 2}),
    "graphsaint": ("graphsaint", {"size": 12, "frontier": 4, "coverage": 10}),
    "graphsaint edges": ("graphsaint", {"size": 12, "sampler": "edge", "coverage": 10, "prefetch": 2}),
    "graphsaint walks": ("graphsaint", {"size": 12, "sampler": "rw", "coverage": 10, "transpose": "counted"}),
    "graphsaint nodes": ("graphsaint", {"size": 12, "sampler": "node", "cache": "degree"}),
    "graphsaint walkers": ("graphsaint", {"size": 12, "sampler": "mrw", "frontier": 4, "coverage": 10, "prefetch": 2}),
    "graphsaint means": ("graphsaint", {"size": 12, "sampler": "mrw", "normalise": False, "clip": 2}),
    "graphsaint local": ("graphsaint", {"size": 6, "sampler": "node", "scope": "local"}),
    "graphsaint local walks": (
        "graphsaint",
        {"size": 6, "sampler": "rw", "scope": "local", "normalise": False, "prefetch": 2},
    ),
    "clustergcn": ("clustergcn", {"clusters": 8, "per_batch": 2}),
    "gas": ("gas", {"clusters": 8, "per_batch": 2}),
    "gas ahead": ("gas", {"clusters": 8, "per_batch": 2, "cache": "degree", "prefetch": 2}),
    "vrgcn": ("vrgcn", {"fanouts": 2, "batch_size": 4}),
    "vrgcn cached": ("vrgcn", {"fanouts": 2, "batch_size": 4, "cache": "degree"}),
    "sign": ("sign", {"batch_size": 4}),
    "sign of the last": ("sign", {"batch_size": 0, "powers": "last"}),
    "dgs": ("dgs", DGS),
    "dgs ahead": ("dgs", DGS | {"estimator": "unbiased", "deviation": 0.5, "prefetch": 2, "cache": "degree"}),
    "dgs asking": ("dgs", DGS | {"topology": "owner"}),
}
Key = tuple[int, str, str]
# Alone a rank does nothing that it does not do beside another; its own are the runs of one variant of each method.
RUNS: list[Key] = [(1, name, "sage") for name, (method, _) in METHODS.items() if name in (method, HOST)] + [
    (2, name, model) for name, (method, _) in METHODS.items() for model in MODELS if model == "sage" or name == method
]
# In the quick tier two ranks train a plain method of each family.
QUICK: list[Key] = [(2, name, "sage") for name in ("bns-gcn", "graphsage")]
DRAWN_THERE = ("graphsage", "fastgcn", "ladies", "skewed", "graphsaint", "clustergcn", "gas", "vrgcn", "dgs")
DRAWN_OTHERWISE = ("graphsaint edges",)  # some nodes have no neighbours; chances are tested by themselves
DRAWN_HERE = ("graphsage asking", "graphsage asking ahead", "graphsage important", "ladies asking", "dgs asking")

Waits = set[tuple[str, str]]
COUNTS = ("copy to the host", "harness/runtime/comm.py:exchange_counts")  # how many rows come: memory is made for them
TRANSFER = ("synchronize a stream", "harness/runtime/batches.py:do")  # in a thread of its own, beside the training
LABELLED = ("nonzero", "harness/runtime/minibatch.py:_loss")  # how many rows of a subgraph the loss reads
ASKED = ("copy to the host", "harness/runtime/step.py:ask")  # how many rows are moved
PLACED = ("copy to the host", "harness/runtime/row_plan.py:of")  # how many rows each rank is asked for
INDUCED = ("nonzero", "harness/graph/csr.py:induce_columns_on_device")  # how many edges there are
SAMPLED = {  # how many edges and nodes of a layer there are, and rows of each rank
    ("_local_scalar_dense", "harness/sampling/neighbours.py:draw_uniform_on_device"),
    ("nonzero", "harness/sampling/sample.py:number_nodes"),
    PLACED,
}
SEEN = {  # how many edges there are into a layer's destinations, and nodes that they meet
    ("_local_scalar_dense", "harness/sampling/sample.py:rows"),
    ("nonzero", "harness/sampling/sample.py:number_nodes"),
}
LABOR = {("nonzero", "harness/sampling/labor.py:draw_labor_on_device")}  # how many edges are drawn
LAYERED = SEEN | {  # how many candidates there are (of each side, and their sums), drawn nodes, edges, own rows
    ("_local_scalar_dense", "harness/sampling/layerwise.py:weigh"),
    ("nonzero", "harness/sampling/layerwise.py:layer"),
    ("nonzero", "harness/sampling/layerwise.py:_own_rows"),
}
SKEWED = ("copy to the host", "harness/sampling/layerwise.py:weigh")
GLOBAL = SEEN | {("nonzero", f"methods/fastgcn.py:{name}") for name in ("_layer", "_own_rows")}
SUBGRAPH = {  # the same of a subgraph
    ("_local_scalar_dense", "harness/sampling/sample.py:rows"),
    ("nonzero", "harness/sampling/subgraphs.py:induced_on_device"),
    PLACED,
}
NODES = {  # how many nodes a subgraph has
    ("nonzero", "harness/sampling/subgraphs.py:draw"),
    ("nonzero", "methods/graphsaint/node_samplers.py:_distinct"),
    ("nonzero", "methods/graphsaint/node_samplers.py:nodes"),
    ("_local_scalar_dense", "methods/graphsaint/node_samplers.py:full"),  # whether walkers have met as many
}
OWNED = (
    "copy to the host",
    "harness/runtime/minibatch.py:_move",
)  # what ranks send from the host: rows of the topology
EDGES = {  # all in a thread beside the training
    ("nonzero", "methods/psc_gcn/edges.py:draw_on_device"),  # how many edges there are, and boundary nodes
    ("equal", "methods/psc_gcn/edges.py:optimal_on_device"),  # whether that was the last pass
    ("_local_scalar_dense", "methods/psc_gcn/__init__.py:_follow"),  # how many boundary nodes are expected
    ("copy to the host", "methods/psc_gcn/__init__.py:inputs"),  # how many rows are moved to each rank
    ("nonzero", "methods/psc_gcn/__init__.py:inputs"),  # and how many are cached
}
ASSIGNED = {  # of each row its bits, and of each group of rows their variance, behind a step
    COUNTS,
    ("copy to the host", "methods/adaqp.py:of"),
    ("copy to the host", "methods/adaqp.py:steps"),
    ("copy to the host", "methods/adaqp.py:_assign"),
}
WRITTEN = ("nonzero", "harness/runtime/features.py:put")  # how many rows of its own a rank writes
HISTORY = {
    ("nonzero", "methods/vrgcn.py:draw_with_history"),  # how many historical rows are read
    ("copy to the host", "methods/vrgcn.py:sample"),  # how many rows of other ranks are read and written
    WRITTEN,
}
READ = ("copy to the host", "harness/graph/csr.py:on_host")  # rows that are in the host's memory, or are looked at
FILED = ("nonzero", "harness/runtime/row_plan.py:own_rows")  # which rows are read from a disk
EXPLAINED = {(what, "methods/dgs/explainer.py:take") for what in ("_local_scalar_dense", "copy to the host")}
ALLOWED: dict[str, Waits] = {
    "bns-gcn": {ASKED, INDUCED},
    "cagnet": {COUNTS, INDUCED},
    "pipegcn": {TRANSFER},
    "adaqp": ASSIGNED,
    "psc-gcn": {ASKED, TRANSFER} | EDGES,
    "graphsage": {COUNTS, TRANSFER, READ, OWNED, FILED} | SAMPLED | SEEN | LABOR,
    "cooperative": {COUNTS, TRANSFER, OWNED},
    "p3": {TRANSFER, OWNED},
    "fastgcn": {COUNTS, TRANSFER, PLACED} | GLOBAL,
    "ladies": {COUNTS, TRANSFER, PLACED, OWNED} | LAYERED,
    "skewed": {COUNTS, PLACED, SKEWED, LABELLED, TRANSFER} | LAYERED | SUBGRAPH | NODES,
    "graphsaint": {COUNTS, LABELLED, TRANSFER} | SUBGRAPH | NODES,
    "clustergcn": {COUNTS, LABELLED} | SUBGRAPH,
    "gas": {COUNTS, LABELLED, TRANSFER, READ, WRITTEN} | SAMPLED,
    "vrgcn": {COUNTS, READ} | SAMPLED | SEEN | HISTORY,
    "dgs": {COUNTS, TRANSFER, OWNED, ("nonzero", "methods/dgs/guided_sampling.py:draw")} | SAMPLED | SEEN | EXPLAINED,
}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Batches[Key, list[OnDevice]]:
    """What each rank of each run saw."""
    graphs = TinyGraphs(tmp_path_factory.mktemp("device"))

    def train(runs: Sequence[Key]) -> dict[Key, list[OnDevice]]:
        ((world, _, _), *_) = runs
        stored = graphs.get("transductive", world).stored
        cases = [Case(stored, *METHODS[name], MODELS[model], SPEC) for _, name, model in runs]
        with rank_group(world) as group:
            by_rank = group.call(train_on_both, cases, timeout_s=420)
        return {run: [ranks[i] for ranks in by_rank] for i, run in enumerate(runs)}

    rest = [run for run in RUNS if run not in QUICK]
    by_world = [[run for run in rest if run[0] == world] for world in (1, 2)]
    return Batches(train, QUICK, *(runs[k : k + 12] for runs in by_world for k in range(0, len(runs), 12)))


def tiers(runs: Iterable[Key]) -> list[Any]:
    return tiered(runs, QUICK)


def words(run: Key) -> str:
    return " ".join(map(str, run))


def test_every_method_is_trained_here() -> None:
    assert {method for method, _ in METHODS.values()} == set(REGISTERED.names())


@pytest.mark.parametrize("run", tiers(run for run in RUNS if run[1] not in DRAWN_OTHERWISE), ids=words)
def test_training_is_that_of_the_cpu(seen: Batches[Key, list[OnDevice]], run: Key) -> None:
    for rank in seen[run]:
        cpu, device = rank.cpu, rank.device
        assert [row["loss"] for row in device.rows] == pytest.approx([row["loss"] for row in cpu.rows], rel=RTOL)
        assert device.scores == cpu.scores
        for name, gradient in cpu.gradients.items():
            np.testing.assert_allclose(device.gradients[name], gradient, rtol=1e-6, atol=1e-9)
        assert _sent(device) == _sent(cpu)
        assert device.broken is None


def _sent(seen: RankOutcome) -> list[dict[str, Any]]:
    """Return the traffic of epochs, swaps left out: what roc moves depends on what a device's kernels keep."""
    return [row for row in seen.traffic if row["scope"] == "epoch" and row["purpose"] != "swap"]


@pytest.mark.parametrize("run", tiers(RUNS), ids=words)
def test_no_step_waits_for_the_device(seen: Batches[Key, list[OnDevice]], run: Key) -> None:
    method, _ = METHODS[run[1]]
    waits = sum((rank.waits for rank in seen[run]), Counter[tuple[str, str]]())
    assert set(waits) <= ALLOWED.get(method, set())


@pytest.mark.parametrize("run", tiers(RUNS), ids=words)
def test_memory_of_other_streams_is_held(seen: Batches[Key, list[OnDevice]], run: Key) -> None:
    assert set().union(*(rank.unheld for rank in seen[run])) == set()


@pytest.mark.parametrize("run", tiers(RUNS), ids=words)
def test_streams_share_memory_in_order(seen: Batches[Key, list[OnDevice]], run: Key) -> None:
    assert set().union(*(rank.races for rank in seen[run])) == set()


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_rows_of_the_host_are_copied_ahead_on_a_stream_of_their_own(
    seen: Batches[Key, list[OnDevice]], world: int
) -> None:
    for rank in seen[world, HOST, "sage"]:
        on_default, aside = rank.uploads
        copied, read, cached = (
            sum(int(row["stats"].get(key) or row.get(key) or 0) for row in rank.device.rows)
            for key in ("bytes_swap", "input_nodes", "cached_nodes")
        )
        assert copied
        assert 0 < cached < read
        assert aside >= copied
        assert on_default <= SPEC.epochs * 2 * LOOKED_AT * 8  # places of the few rows that are looked at


@pytest.mark.parametrize("run", tiers(run for run in RUNS if METHODS[run[1]][0] in DRAWN_THERE), ids=words)
def test_draws_are_made_there(seen: Batches[Key, list[OnDevice]], run: Key) -> None:
    waits = {wait for rank in seen[run] for wait in rank.waits} - EXPLAINED
    sampled = "_local_scalar_dense" in {what for what, _ in waits}
    assert sampled == (run[1] not in DRAWN_HERE)


STAGED = [("full", "gat"), ("bns-gcn", "sage"), ("pipegcn", "sage"), ("graphsage ahead", "sage")]
STAGING = ("synchronize a stream", "harness/runtime/comm.py:_on_host")


@pytest.mark.slow
def test_ranks_that_share_a_gpu_stage_by_pinned_memory(tmp_path: Path) -> None:
    stored = TinyGraphs(tmp_path).get("transductive", 2).stored
    cases = [Case(stored, *METHODS[name], MODELS[model], SPEC) for name, model in STAGED]
    for rank in run_ranks(train_on_both, 2, cases, False, timeout_s=240):
        for (name, _), found in zip(STAGED, rank, strict=True):
            assert [row["loss"] for row in found.device.rows] == pytest.approx(
                [row["loss"] for row in found.cpu.rows], rel=RTOL
            )
            assert STAGING in found.waits
            assert set(found.waits) <= ALLOWED.get(METHODS[name][0], set()) | {STAGING}
            assert (found.unheld, found.races) == (set(), set())


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault: str, tmp_path: Path) -> None:
    case = Case(TinyGraphs(tmp_path).get("transductive", 1).stored, "full", {}, MODELS["sage"], SPEC)
    if fault == "item":
        [[found]] = run_ranks(train_with_fault, 1, case, fault)
        assert set(found.waits) == {("_local_scalar_dense", "harness/graph/block.py:forward")}
        return
    with pytest.raises(RankError, match={"numpy": "can't convert fake", "mixed": "on the same device"}[fault]):
        run_ranks(train_with_fault, 1, case, fault)
