"""One training in a process of its own: `python loops.py REQUEST`, a JSON object; prints seconds and memory as JSON.

Loops are those of the libraries' own examples: their loaders, their SAGEConv, Adam, as many threads as they are given.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

Arrays = dict[str, np.ndarray]
Steps = Callable[[], Iterator[None]]
WALK = 2  # steps of a random walk
OURS = {  # method and options, which have the request's names
    "full": ("full",),
    "neighbours": ("graphsage", "fanouts", "batch_size"),
    "clusters": ("clustergcn", "clusters", "per_batch"),
    "walks": ("graphsaint", "size"),
}
OF_WALKS = {"sampler": "rw", "length": WALK, "normalise": False}


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Train some epochs; return the seconds of each but the first, and the bytes of the peak above the imports."""
    torch.set_num_threads(request["threads"])
    torch.manual_seed(request["seed"])
    if request["library"] == "ours":
        return ours(request)
    graph = {key: np.load(Path(request["arrays"]) / f"{key}.npy") for key in ("indptr", "indices", "x", "y", "train")}
    steps, base = (of_dgl if request["library"] == "dgl" else of_pyg)(graph, request)
    seconds = []
    for _ in range(request["epochs"]):
        start = time.perf_counter()
        for _ in steps():
            pass
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[1:], "peak": _peak() - base}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def layers_of(
    layer: Callable[[int, int], torch.nn.Module], arrays: Arrays, request: dict[str, Any]
) -> torch.nn.ModuleList:
    """Return the layers of a model: hidden ones of one width."""
    classes = int(arrays["y"].max()) + 1
    widths = [arrays["x"].shape[1], *[request["hidden"]] * (request["layers"] - 1), classes]
    return torch.nn.ModuleList(layer(a, b) for a, b in pairwise(widths))


class Loop:
    """A model of a library's layers with its optimizer; a layer is called with a graph and rows."""

    def __init__(self, layers: torch.nn.ModuleList, call: Callable[..., torch.Tensor], dropout: float) -> None:
        self.layers, self._call, self._dropout = layers, call, dropout
        self._optimizer = torch.optim.Adam(layers.parameters(), 0.01)

    def forward(self, graphs: list[Any], rows: torch.Tensor) -> torch.Tensor:
        """Return the last layer's rows; `graphs`: one a layer."""
        for number, (layer, graph) in enumerate(zip(self.layers, graphs, strict=True)):
            rows = self._call(
                layer, graph, functional.dropout(rows, self._dropout)
            )  # of the input features, too, as ours
            if number < len(self.layers) - 1:
                rows = functional.relu(rows)
        return rows

    def learn(self, out: torch.Tensor, labels: torch.Tensor) -> None:
        """Take a step; without labels none."""
        if not len(labels):
            return
        loss = functional.cross_entropy(out, labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def of_dgl(arrays: Arrays, request: dict[str, Any]) -> tuple[Steps, int]:
    """Return the steps of an epoch with DGL, and the memory before there was any graph."""
    import dgl
    from dgl.nn import SAGEConv

    base = _peak()
    columns = tuple(torch.from_numpy(arrays[key].astype(np.int64)) for key in ("indptr", "indices"))
    graph = dgl.graph(("csc", (*columns, torch.zeros(0, dtype=torch.int64))), num_nodes=len(arrays["y"]))
    for key in ("x", "y", "train"):
        graph.ndata[key] = torch.from_numpy(arrays[key])
    train = graph.ndata["train"].nonzero().squeeze(1)
    loop = Loop(
        layers_of(lambda a, b: SAGEConv(a, b, "mean"), arrays, request),
        lambda own, at, rows: own(at, rows),
        request["dropout"],
    )
    if request["task"] == "full":
        graph = graph.formats(["csc", "csr"])

        def whole() -> Iterator[None]:
            out = loop.forward([graph] * len(loop.layers), graph.ndata["x"])
            yield loop.learn(out[train], graph.ndata["y"][train])

        return whole, base
    loader = dgl_loader(dgl.dataloading, graph, train, request)

    def batches() -> Iterator[None]:
        for batch in loader:
            if request["task"] == "neighbours":
                blocks = batch[2]
                yield loop.learn(loop.forward(blocks, blocks[0].srcdata["x"]), blocks[-1].dstdata["y"])
            else:
                out, mask = loop.forward([batch] * len(loop.layers), batch.ndata["x"]), batch.ndata["train"]
                yield loop.learn(out[mask], batch.ndata["y"][mask])

    return batches, base


def dgl_loader(loading: Any, graph: Any, train: torch.Tensor, request: dict[str, Any]) -> Any:
    """Return DGL's loader of a task's batches."""
    data = ["x", "y", "train"]
    if request["task"] == "neighbours":
        sampler = loading.NeighborSampler(request["fanouts"], prefetch_node_feats=["x"], prefetch_labels=["y"])
        return loading.DataLoader(graph, train, sampler, batch_size=request["batch_size"], shuffle=True)
    if request["task"] == "clusters":
        kept, clusters = str(Path(request["arrays"]) / "dgl-clusters.pkl"), torch.arange(request["clusters"])
        sampler = loading.ClusterGCNSampler(graph, request["clusters"], cache_path=kept, prefetch_ndata=data)
        return loading.DataLoader(graph, clusters, sampler, batch_size=request["per_batch"], shuffle=True)
    sampler = loading.SAINTSampler("walk", (request["size"] // (WALK + 1), WALK), prefetch_ndata=data)
    return loading.DataLoader(graph, torch.arange(-(-graph.num_nodes() // request["size"])), sampler)


def of_pyg(arrays: Arrays, request: dict[str, Any]) -> tuple[Steps, int]:
    """Return the steps of an epoch with PyG, and the memory before there was any graph."""
    from torch_geometric.data import Data
    from torch_geometric.nn import SAGEConv

    base = _peak()
    nodes, task = len(arrays["y"]), request["task"]
    into = np.repeat(np.arange(nodes), np.diff(arrays["indptr"]))
    edges = torch.from_numpy(np.stack([arrays["indices"].astype(np.int64), into]))
    x, y, train = (torch.from_numpy(arrays[key]) for key in ("x", "y", "train"))
    data = Data(x=x, y=y, edge_index=edges, train_mask=train)
    loop = Loop(layers_of(SAGEConv, arrays, request), lambda own, at, rows: own(rows, at), request["dropout"])
    loader = [data] if task == "full" else pyg_loader(data, request)

    def batches() -> Iterator[None]:
        for batch in loader:
            out = loop.forward([batch.edge_index] * len(loop.layers), batch.x)
            mask = slice(batch.batch_size) if task == "neighbours" else batch.train_mask
            yield loop.learn(out[mask], batch.y[mask])

    return batches, base


def pyg_loader(data: Any, request: dict[str, Any]) -> Any:
    """Return PyG's loader of a task's batches."""
    from torch_geometric.loader import ClusterData, ClusterLoader, GraphSAINTRandomWalkSampler, NeighborLoader

    if request["task"] == "neighbours":
        fanouts = request["fanouts"][::-1]  # PyG counts hops from the targets on
        batch = request["batch_size"]
        return NeighborLoader(data, fanouts, input_nodes=data.train_mask, batch_size=batch, shuffle=True)
    if request["task"] == "clusters":
        parts = ClusterData(data, request["clusters"], log=False)
        return ClusterLoader(parts, batch_size=request["per_batch"], shuffle=True)
    steps = -(-data.num_nodes // request["size"])
    return GraphSAINTRandomWalkSampler(data, request["size"] // (WALK + 1), WALK, num_steps=steps)


def ours(request: dict[str, Any]) -> dict[str, Any]:
    """Return the same of a trial of this tool, on one rank."""
    import harness

    name, *keys = OURS[request["task"]]
    options = {key: request[key] for key in keys} | (OF_WALKS if name == "graphsaint" else {})
    suite = {
        "name": "peers",
        "datasets": [request["dataset"]],
        "model": {"name": "sage"} | {key: request[key] for key in ("layers", "hidden", "dropout")},
        "train": {
            "epochs": request["epochs"], "eval_every": 0, "final_eval": False, "threads": request["threads"],
            "inductive": False,
        },
        "partition": {"parts": 1},
        "methods": [{name: options}],
        "seeds": [request["seed"]],
        "device": "cpu",
        "timing": "wall",
    }  # fmt: skip
    place = Path(request["arrays"]) / "results"
    found = harness.run(suite, results=place, fresh=True).iloc[0]
    assert found["status"] == "ok", found["reason"]
    return {"seconds": [float(found["epoch_time_s"])], "peak": int(found["peak_above_base_bytes"])}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
