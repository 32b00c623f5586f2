"""What other tools write: tables, Matrix Market, scipy's, PyG's and DGL's files, with arrays next to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse as sp
import torch
from hypothesis import strategies as st
from support import raw_formats as raw

from harness.data.formats import imported
from harness.data.graph import GraphData

from .of_data import FormatTarget
from .target import Files

NUMBERS = st.sampled_from(["0", "1", "2", "19", "20", "-1", "1e3", "nan", "x", "9" * 30, "", " ", "#", "0x1", "1.5"])
SETS = {"train": 1, "val": 2, "test": 3}


def import_target(
    suffix: str, writer: Callable[[Path, raw.Known], object], *, whole: bool = False
) -> type[FormatTarget]:
    """Return the target of a kind of file; `whole`: it has features, labels and split, too."""

    def write(self: FormatTarget, folder: Path, graph: raw.Known) -> None:
        writer(folder / f"g{suffix}", graph)
        if not whole:
            np.save(folder / "f.npy", graph.features)
            pd.DataFrame(graph.labels).to_csv(folder / "l.csv", header=False, index=False)
            sets = {part: np.flatnonzero(graph.split == at).tolist() for part, at in SETS.items()}
            (folder / "s.json").write_text(json.dumps(sets))

    def graph(self: FormatTarget, source: Path, work: Path) -> GraphData:
        more = {} if whole else {"features": "f.npy", "labels": "l.csv", "splits": "s.json"}
        given = {key: source / more[key] if key in more else None for key in ("features", "labels")}
        splits = str(source / more["splits"]) if more else None
        return imported.read(source / f"g{suffix}", "g", work, splits=splits, **given)[0]

    def strategy(self: FormatTarget, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        tables = [file for file in self.victims(files) if file.endswith((".csv", ".mtx"))]
        rows = st.lists(st.lists(NUMBERS, min_size=1, max_size=4), max_size=25)
        text = rows.map(lambda table: "".join(",".join(row) + "\n" for row in table).encode())
        odd = FormatTarget.strategy(self, {name: data for name, data in files.items() if name not in tables})
        return st.tuples(st.sampled_from(tables), text) | odd if tables else odd

    name = "import" + suffix.replace(".", "-")
    return type(name, (FormatTarget,), {"name": name, "write": write, "graph": graph, "strategy": strategy})


def _table(path: Path, graph: raw.Known) -> None:
    pd.DataFrame(raw.one_way(graph).T, columns=["src", "dst"]).to_csv(path, index=False)


def _tensors(path: Path, graph: raw.Known) -> None:
    masks = {f"{part}_mask": torch.from_numpy(graph.split == at) for part, at in SETS.items()}
    arrays = {"x": graph.features, "y": graph.labels, "edge_index": np.ascontiguousarray(raw.one_way(graph))}
    torch.save({key: torch.from_numpy(value) for key, value in arrays.items()} | masks, path)


def _columns(path: Path, graph: raw.Known) -> None:
    pd.DataFrame(raw.one_way(graph).T, columns=["src", "dst"]).to_parquet(path)


IMPORTS = (
    import_target(".csv", _table),
    import_target(".csv.gz", _table),
    import_target(".parquet", _columns),
    import_target(".mtx", lambda path, graph: scipy.io.mmwrite(path, sp.coo_matrix(graph.csr))),
    import_target(".npz", lambda path, graph: sp.save_npz(path, sp.csr_matrix(graph.csr))),
    import_target(".pt", _tensors, whole=True),
)
