"""SIGN: powers of the propagation matrix times the features, computed once, and a model of single rows on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from harness import Bytes, BytesCase, Method, MethodOptions, Step, Worker, torch
from harness import numpy as np
from harness.plugin import (
    CSR,
    MAPPED,
    Batch,
    Block,
    BlockSize,
    Loss,
    MemoryCase,
    ModelSpec,
    Propagation,
    node_batches,
    upload,
)

if TYPE_CHECKING:
    from torch import Tensor


class SIGNOptions(MethodOptions):
    """Options of SIGN."""

    hops: int | None = Field(
        None, ge=1, le=100, description="K, the highest power of A; default: the suite's number of graph layers"
    )
    powers: Literal["all", "last"] = Field(
        "all", description="X, A X, ..., A^K X, each with weights of its own; or A^K X alone and one linear layer: SGC"
    )
    batch_size: int = Field(1024, ge=0, description="training nodes a step and rank; 0: all of the rank")
    storage: Literal["sharded", "disk"] = MAPPED


class SIGN(Method[SIGNOptions]):
    """Rows of X, A X, ..., A^K X are computed once; training exchanges gradients only (Frasca et al., GRL+ 2020).

    It trains a model of its own in place of the suite's: Y = s(X W_0 | A X W_1 | ... | A^K X W_K) W (section 3), each
    W_k as wide as the suite's hidden layers, with the suite's linear layers for W, one at least; activation,
    normalisation and dropout as in the suite. That is one layer of `mixhop` and linear ones, so evaluations are the
    exact ones of that model, on the evaluated graph. A is D^-1 A where the suite's model aggregates by that (sage, and
    mixhop with `propagation: mean`), else GCN's D^-1/2 (A + I) D^-1/2. With `powers: last` it is SGC (Wu et al., ICML
    2019, Eq. 8): A^K X W + b. Operators other than powers of one A (personalised PageRank, triangles) are left out.

    Without dropout, and with all training nodes a step, it is full-graph training of that model. Dropout draws each
    power of a row anew. A rank keeps the powers of its training nodes' rows alone; `train.eval_memory` bounds what
    computing them takes, by some columns of X at a time. A batch is of the rank's own training nodes; all ranks take
    the steps of the one with the most, an empty batch where one has run out.

    Bytes of an epoch: none but the gradients' sum. Set-up: each boundary row once a hop, K sum_i |B_i| F itemsize, the
    first hop as features, the others as embeddings.
    """

    name = "sign"
    family = "mini-batch"
    colour = "#44aa99"
    Options = SIGNOptions
    space: ClassVar[Mapping[str, Any]] = {"batch_size": [256, 1024, 4096], "hops": [2, 3, 4]}
    exact: ClassVar[dict[str, Any]] = {"batch_size": 0}

    def __init__(self, worker: Worker, options: SIGNOptions) -> None:
        super().__init__(worker, options)
        powers = kept_powers(worker.model.spec)
        self._rows = worker.propagated(worker.view.features(), powers, worker.train_rows)
        self._nodes = worker.view.split_nodes("train")
        self._labels = worker.view.labels[worker.train_rows]
        self._own = self._rows.pop(0) if powers[0] == 0 else self._rows[0][:0]

    @classmethod
    def model_of(cls, options: SIGNOptions, model: ModelSpec) -> ModelSpec:
        """See `Method`: a layer of mixhop, and linear ones."""
        hops, last = options.hops or model.layers, options.powers == "last"
        mean = model.name == "sage" or model.options.get("propagation") == "mean"
        own = {"propagation": "mean"} if mean else {}
        size = {
            "name": "mixhop", "order": hops, "heads": ModelSpec.model_fields["heads"].default,
            "options": own | ({"powers": "last"} if last else {}),
            "layers": 1, "linear_layers": 0 if last else max(1, model.linear_layers),
            "hidden": model.hidden if last else (hops + 1) * model.hidden,
        }  # fmt: skip
        return model.model_copy(update=size)

    @classmethod
    def option_warnings(cls, options: SIGNOptions, case: MemoryCase) -> list[str]:
        """See `Method`: whose model it trains."""
        return [f"trains a model of its own, {case.model.spec.label}, and not the suite's: scores are of that one"]

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step for each batch of training nodes."""
        yield from map(self._step, node_batches(self.worker, epoch, self.options.batch_size))

    def _step(self, batch: Batch) -> Step:
        worker, count = self.worker, batch.targets.size
        at = upload(np.searchsorted(self._nodes, batch.targets), worker.device)
        no_edges = torch.zeros(count + 1, dtype=torch.int64, device=worker.device)
        structure = CSR(no_edges, no_edges[:0].int(), count)
        block = _Propagated(structure, no_edges[1:].to(worker.dtype), engine=worker.partition.engine)
        return Step(
            blocks=[block] * worker.model.depth,
            loss=Loss(torch.arange(count, device=worker.device), self._labels[at], batch.total),
            inputs=lambda: self._own[at] if len(self._own) else self._own,
            aggregated=lambda: torch.cat([power[at] for power in self._rows], 1),
            nodes=batch.targets,
            outputs=batch.targets,
        )

    @classmethod
    def memory(cls, options: SIGNOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components of the largest batch, and of the powers of the training nodes' rows.

        "set-up" is by how much it needs more than the training: the inner nodes' rows before and behind a hop,
        scaled if A scales them, and with other ranks' where there are any; of the columns that go at once, next to all
        of them in memory.
        """
        powers, rows = kept_powers(case.model.spec), case.batch_rows(options.batch_size)
        width, part, on_disk = case.model.widths[0][0], case.train, options.storage == "disk"
        row = width * case.itemsize
        found = case.mini_batch([BlockSize(rows, rows, 0)] * case.model.depth, on_disk=on_disk)
        found |= {"input features": len(powers) * case.train_nodes * row, "powers of a batch": len(powers) * rows * row}
        copies = 3 if case.model.propagation.right else 2
        hop = copies * part.inner + (part.inner + part.boundary if case.parts > 1 else 0)
        columns = case.columns_at_once()
        held = 0 if on_disk or columns == width else part.inner * row
        needed = hop * columns * case.itemsize + held + found["input features"]
        needed += case.matrices(part.block, transposed=False)
        rest = sum(size for name, size in found.items() if name not in ("labels", "weights and optimizer"))
        return found | {"set-up": max(0, needed - rest)}

    @classmethod
    def bytes_per_epoch(cls, options: SIGNOptions, case: BytesCase) -> Bytes:
        """Return no bytes."""
        return {}


class _Propagated(Block):
    """Rows without edges, for which every hop was computed before: of A^K X alone the model is given no other power."""

    def aggregate(self, h: Any, propagation: Propagation, of: Any = None, *, rounded: bool = False) -> Tensor:
        """Return `h`."""
        return h  # type: ignore[no-any-return]


def kept_powers(model: ModelSpec) -> list[int]:
    """Return the powers of A that such a model reads, ascending."""
    return [model.order] if model.options.get("powers") == "last" else [*range(model.order + 1)]
