"""Partitioners that look at no edge: random, chunk, file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.data.partition.kernels import Ints
from harness.data.partition.partitioner import Partitioner, node_weights
from harness.errors import DataError, UserError
from harness.spec import Spec

VECTOR = "np.save an integer vector [N]"


class Random(Partitioner[Spec]):
    """Balanced parts of randomly drawn nodes (the worst case for communication)."""

    name = "random"

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`.

        The permutation is of a stream of its own: `default_rng(seed).permutation(n)` is how splits are
        commonly drawn, and with it a data set's training nodes would be the first parts' nodes.
        """
        order = np.random.default_rng([self.spec.seed, len("partition")]).permutation(indptr.size - 1)
        return _in_order(node_weights(indptr, self.spec), order, self.spec.parts)


class Chunk(Partitioner[Spec]):
    """Contiguous node ranges, balanced by nodes or edges."""

    name = "chunk"
    reads = frozenset(("balance",))

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        return _in_order(node_weights(indptr, self.spec), np.arange(indptr.size - 1), self.spec.parts)


class File(Partitioner[Spec]):
    """A .npy vector of yours with the part of each node."""

    name = "file"
    reads = frozenset(("file",))
    of_all_nodes = True

    def parts(self, indptr: Ints, indices: Ints) -> NDArray[np.int32]:
        """See `Partitioner`."""
        return _read_parts(self.spec.file, indptr.size - 1, self.spec.parts)


def _in_order(weight: NDArray[np.int64], order: NDArray[np.int64], count: int) -> NDArray[np.int32]:
    """Cut the nodes in an order into `count` ranges of nearly equal weight."""
    parts = np.empty(order.size, np.int32)
    parts[order] = np.repeat(np.arange(count, dtype=np.int32), np.diff(_even_bounds(weight[order], count)))
    return parts


def _even_bounds(weight: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """int64 [count+1]: cut 0..len(weight) into `count` non-empty ranges of nearly equal weight."""
    total = np.concatenate([[0], np.cumsum(weight)])
    goal = np.arange(count + 1) * total[-1] / count
    after = np.searchsorted(total, goal).clip(1, weight.size)
    bounds = after - (goal - total[after - 1] < total[after] - goal)
    step = np.arange(count + 1)
    bounds = np.maximum.accumulate(bounds - step) + step
    bounds[0], bounds[-1] = 0, weight.size
    # a heavy node can swallow several goals: leave one node for each part before and after
    return np.asarray(np.clip(bounds, step, weight.size - count + step), np.int64)


def _read_parts(path: Path | None, n: int, count: int) -> NDArray[np.int32]:
    key = "partition.file"
    if path is None:
        raise UserError("method 'file' needs a vector", key=key, fix="file: path of a .npy")
    try:
        vector = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror or error})", file=path, key=key, fix="a .npy of integers"
        ) from error
    except (ValueError, EOFError) as error:
        raise DataError("not a whole .npy vector", file=path, key=key, fix="np.save an integer vector") from error
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype.kind not in "iu":
        raise UserError("not a vector of integers", file=path, key=key, fix=VECTOR)
    if vector.size != n:
        raise UserError(f"{vector.size} entries for {n} nodes", file=path, key=key, fix="one entry per node")
    if n and (vector.min() < 0 or vector.max() >= count):
        found = f"values {vector.min()}..{vector.max()}"
        raise UserError(f"{found} for {count} parts", file=path, key=key, fix=f"0..{count - 1}")
    return vector.astype(np.int32)
