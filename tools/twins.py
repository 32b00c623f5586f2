"""Hold twins against the published sets: boundary nodes by number of parts, as docs/design/twins.md has them.

    python -m tools.twins pubmed:1 reddit:0.1

prints a row for each set and scale: METIS' boundary nodes of all parts in 2, 4, 8 and 16 parts, in multiples of the
graph's nodes, how far that is from the set's, the largest part's over the mean's in 16, degree, homophily and seconds.

    python -m tools.twins --scores pubmed:1 ...

prints what full-graph training scores on the test nodes at the epoch that validates best, the published score, and what
logistic regression on a node's own features does, which sees no graph.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data.catalog import BOUNDARIES, published
from harness.data.generated.twin import SHAPES, make
from harness.data.graph import GraphData
from harness.data.partition import partition_nodes
from harness.spec import PartitionSpec

PARTS = (2, 4, 8, 16)
MEASURED = {  # METIS, edge cut, on the real graphs
    "flickr": (0.639, 1.369, 2.110, 2.892),
    "cora": (0.106, 0.172, 0.280, 0.420),
    "citeseer": (0.017, 0.035, 0.075, 0.134),
}


def wanted(of: str) -> tuple[float | None, ...]:
    """Return a set's boundary nodes in `PARTS` parts, in multiples of its nodes; None where nobody has said."""
    if of in BOUNDARIES:
        return tuple(BOUNDARIES[of].by_parts.get(parts) for parts in PARTS)
    return MEASURED.get(of, (None,) * len(PARTS))


def boundary(graph: GraphData, parts: int) -> np.ndarray:
    """Return the boundary nodes of each part that METIS makes."""
    part = partition_nodes(graph.indptr, graph.indices, PartitionSpec(parts=parts, objective="cut")).astype(np.int64)
    found = np.zeros(parts, np.int64)
    for own in range(parts):  # a part at a time: no pair of node and part is in memory
        nodes = np.flatnonzero(part == own)
        sizes = graph.indptr[nodes + 1] - graph.indptr[nodes]
        starts = np.repeat(graph.indptr[nodes] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
        read = np.zeros(graph.nodes, bool)
        read[graph.indices[starts + np.arange(starts.size)]] = True
        found[own] = (read & (part != own)).sum()
    return found


def row(of: str, scale: float) -> str:
    """Return a row of the table."""
    start, graph = time.perf_counter(), make(of=of, scale=scale)
    made_s, cells, uneven = time.perf_counter() - start, [], 0.0
    for parts, want in zip(PARTS, wanted(of), strict=True):
        found = boundary(graph, parts)
        share, uneven = found.sum() / graph.nodes, found.max() / max(found.mean(), 1e-300)
        cells.append(f"{share:.3f}" if want is None else f"{share:.3f} ({100 * (share / want - 1):+.0f} %)")
    homophily = ""
    if not published()[of].info.multilabel:
        labels, source = graph.labels, np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
        homophily = f"{(labels[source] == labels[graph.indices]).mean():.2f} ({SHAPES[of].homophily:.2f})"
    degree = f"{graph.edges / graph.nodes:.1f}"
    return f"| {of} {scale:g} | {' | '.join(cells)} | {uneven:.2f} | {degree} | {homophily} | {made_s:.0f} |"


class Published(NamedTuple):
    """A published score of training with the whole graph, and a model and training of its kind, fit for two cores."""

    score: float
    source: str
    layers: int
    hidden: int
    epochs: int
    model: str = "sage"
    dropout: float = 0.3
    decay: float = 0.0


SCORES = {
    "reddit": Published(0.9711, "BNS-GCN, Table 2", 4, 64, 100),
    "ogbn-products": Published(0.7914, "BNS-GCN, Table 2", 3, 128, 60),
    "ogbn-arxiv": Published(0.7176, "Bajaj et al., Table 7", 2, 128, 150),
    "ogbn-papers100m": Published(0.6282, "Bajaj et al., Table 7", 2, 128, 40),
    "yelp": Published(0.6526, "BNS-GCN, Table 2", 2, 128, 60, dropout=0.1),
    "amazon": Published(0.815, "GraphSAINT (ICLR 2020), Table 2", 2, 128, 200, dropout=0.1),
    "flickr": Published(0.511, "GraphSAINT (ICLR 2020), Table 2", 2, 128, 40, dropout=0.2),
    "ppi": Published(0.981, "GraphSAINT (ICLR 2020), Table 2", 2, 256, 150, dropout=0.0),
    "cora": Published(0.815, "Kipf and Welling (ICLR 2017), Table 2", 2, 16, 200, "gcn", 0.5, 5e-4),
    "citeseer": Published(0.703, "Kipf and Welling (ICLR 2017), Table 2", 2, 16, 200, "gcn", 0.5, 5e-4),
    "pubmed": Published(0.790, "Kipf and Welling (ICLR 2017), Table 2", 2, 16, 200, "gcn", 0.5, 5e-4),
}
SEEN, JUDGED = 8_000, 20_000  # training and test nodes, at most, of the model that sees no graph


def without_graph(graph: GraphData) -> float:
    """Return the test score of logistic regression on a node's own features; its regularisation validates best."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import StandardScaler

    rng, labels, features = np.random.default_rng(0), np.asarray(graph.labels), np.asarray(graph.features)

    def some(mask: Any, most: int) -> np.ndarray:
        nodes = np.flatnonzero(mask)
        return rng.choice(nodes, most, replace=False) if nodes.size > most else nodes

    train, judged = some(graph.train_mask, SEEN), [some(graph.val_mask, JUDGED), some(graph.test_mask, JUDGED)]
    scaler, found = StandardScaler().fit(features[train]), []
    for strength in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        model: Any = LogisticRegression(C=strength, max_iter=60)
        model = OneVsRestClassifier(model) if labels.ndim > 1 else model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(scaler.transform(features[train]), labels[train])
        rows = [scaler.transform(features[nodes]) for nodes in judged]
        if labels.ndim == 1:
            found.append([float(model.score(x, labels[nodes])) for x, nodes in zip(rows, judged, strict=True)])
            continue
        chances = [model.predict_proba(x) for x in rows]
        for least in (0.15, 0.2, 0.25, 0.3, 0.4, 0.5):  # one for all labels
            pairs = zip(chances, judged, strict=True)
            found.append([float(f1_score(labels[nodes], own > least, average="micro")) for own, nodes in pairs])
    return max(found)[1]


def score_row(of: str, scale: float) -> str:
    """Return a row of the table of scores."""
    import harness

    want = SCORES[of]
    with tempfile.TemporaryDirectory() as results:
        suite = {
            "name": "scores",
            "datasets": [{"twin": {"of": of, "scale": scale}}],
            "model": {
                "name": want.model, "layers": want.layers, "hidden": want.hidden, "dropout": want.dropout,
                "norm": "layer" if want.layers > 2 else "none",
            },
            "train": {
                "epochs": want.epochs, "lr": 0.01, "weight_decay": want.decay, "eval_every": max(1, want.epochs // 20),
                "inductive": False,
            },
            "partition": {"method": "metis", "parts": 1},
            "methods": ["full"],
            "seeds": [0],
            "device": "cpu",
        }  # fmt: skip
        found = float(harness.run(suite, results=Path(results))["test_at_best_val"].iloc[0])
    alone = without_graph(make(of=of, scale=scale))
    return f"| {of} {scale:g} | {100 * want.score:.1f} | {100 * found:.1f} | {100 * alone:.1f} | {want.source} |"


if __name__ == "__main__":
    made = score_row if "--scores" in sys.argv else row
    for each in (argument for argument in sys.argv[1:] if argument != "--scores"):
        name, _, at = each.partition(":")
        print(made(name, float(at or 1)), flush=True)
