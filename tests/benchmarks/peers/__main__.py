"""Time DGL, PyG and this tool in turns on one graph, one rank each: `python -m benchmarks.peers --graph ogbn_arxiv`.

Every run is a process of its own. Prints of each task the median seconds of an epoch, the memory above the imports, and
the median of the ratios round by round. A library that lacks a part (PyG's samplers: pyg-lib or torch-sparse) is named.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from harness.data.prepared import open_graph
from harness.data.registry import prepare
from harness.spec import DatasetSpec

LIBRARIES = ("ours", "dgl", "pyg")
SHARED = {"hidden": 256, "batch_size": 1024, "clusters": 400, "per_batch": 20, "size": 6000, "layers": 3}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "full batch, 3 layers": ("full", {}),
    "neighbours [25, 10]": ("neighbours", {"layers": 2, "fanouts": [25, 10]}),
    "neighbours [15, 10, 5]": ("neighbours", {"fanouts": [15, 10, 5]}),
    "GraphSAINT walks": ("walks", {}),
    "ClusterGCN": ("clusters", {}),
}


def _run(library: str, request: dict[str, Any], log: Path) -> dict[str, Any] | str:
    """Return what a run measured, or the last line of what went wrong."""
    asked = json.dumps(request | {"library": library})
    command = [sys.executable, str(Path(__file__).with_name("loops.py")), asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Time all tasks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="ogbn_arxiv", help="a data set, in YAML: '{twin: {of: reddit, scale: 0.2}}'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0, help="of each layer's input")
    parser.add_argument("--tasks", default="", help="a word of those to run")
    given = parser.parse_args()
    data = yaml.safe_load(given.graph)
    name, options = next(iter(data.items())) if isinstance(data, dict) else (data, {})
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        graph = open_graph(prepare(DatasetSpec(name=name, options=options)))
        arrays = {"indptr": graph.indptr, "indices": graph.indices, "x": graph.features, "y": graph.labels}
        arrays["train"] = graph.train_mask
        for key, values in arrays.items():
            np.save(Path(place) / f"{key}.npy", values)
        shared = SHARED | {"dataset": data, "arrays": place, "epochs": given.epochs, "threads": given.threads}
        shared["dropout"] = given.dropout
        print(f"{given.graph}: {len(graph.labels):,} nodes, {len(graph.indices):,} entries; {given.threads} threads")
        print(f"{'':<24}" + "".join(f"{each:>22}" for each in LIBRARIES) + f"{'dgl / ours':>20}{'pyg / ours':>20}")
        for title, (task, own) in TASKS.items():
            if given.tasks in title:
                _compare(title, shared | own | {"task": task}, given.rounds, Path(place))


def _compare(title: str, request: dict[str, Any], rounds: int, place: Path) -> None:
    seconds: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    peaks, lacking = dict[str, float](), dict[str, str]()
    for seed in range(rounds):
        for library in LIBRARIES if seed % 2 == 0 else LIBRARIES[::-1]:
            if library in lacking:
                continue
            found = _run(library, request | {"seed": seed}, place / f"{library}.log")
            if isinstance(found, str):
                lacking[library] = found
                continue
            seconds[library].append(statistics.median(found["seconds"]))
            peaks[library] = max(peaks.get(library, 0), found["peak"])
    cells = [
        f"{statistics.median(own):.3f} s, {peaks[library] / 2**20:,.0f} MiB" if own else "-"
        for library, own in seconds.items()
    ]
    ratios = []
    for library in LIBRARIES[1:]:
        each = [theirs / own for theirs, own in zip(seconds[library], seconds["ours"], strict=False)]
        ratios.append(f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})" if each else "-")
    print(
        f"{title:<24}" + "".join(f"{each:>22}" for each in cells) + "".join(f"{each:>20}" for each in ratios),
        flush=True,
    )
    for library, why in lacking.items():
        print(f"    {library}: {why}")


if __name__ == "__main__":
    main()
