"""The SpMM kernel: a slab of columns is summed in registers over all entries of a row.

numba's own loops keep a destination row in memory and add source rows to it. Here the sums of up to `MOST`
vectors never leave the registers, and the rows of the entries to come are prefetched. numba has no vectors,
so the loop over a row's entries is written in LLVM's language, with vectors of a cache line's size, which
LLVM splits where a machine's registers are smaller.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from harness.graph.prefetch import write_prefetch

LINE = 64  # bytes of a vector
MOST = 16  # vectors that a pass over a row's entries can sum
_AHEAD = 16  # entries from the one whose row is added to the one whose row is prefetched
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()


class _Sum:
    """Writes the code that sums one row's entries in vectors of one kind; values are LLVM's.

    Args:
        builder: where to write.
        vector: the vectors' type.
        count: their number.
        x: the arrays of `_sum_row`.
        out: likewise.
        indices: likewise.
        weights: likewise, or None.
    """

    def __init__(
        self, builder: Any, vector: Any, count: int, x: Any, out: Any, indices: Any, weights: Any
    ) -> None:
        self.builder, self.vector, self.count = builder, vector, count
        self.x, self.out, self.indices, self.weights = x, out, indices, weights
        self.itemsize = {ir.FloatType(): 4, ir.DoubleType(): 8}[vector.element]

    def write(self, start: Any, stop: Any, row: Any, first: Any, last: Any) -> None:
        """Write the loop over the entries and the stores of the sums; arguments as `_sum_row` has them."""
        builder, zeros = self.builder, ir.Constant(self.vector, None)
        width = self.vector.count * self.itemsize
        aligned = [_INT64(width * k) for k in range(self.count)]
        offsets = [*aligned[:-1], builder.mul(builder.sub(last, first), _INT64(self.itemsize))]
        column = builder.mul(first, _INT64(self.itemsize))
        source, target = self._move(self.x.data, column), self._move(self.out.data, column)
        # Memory by its form only: LLVM keeps it in registers.
        sums = [cgutils.alloca_once(builder, self.vector) for _ in range(self.count)]
        for total in sums:
            builder.store(zeros, total)
        final = builder.sub(builder.extract_value(self.indices.shape, 0), _INT64(1))
        with cgutils.for_range(builder, stop, start) as loop:
            ahead = builder.add(loop.index, _INT64(_AHEAD))
            ahead = builder.select(builder.icmp_signed("<", ahead, final), ahead, final)
            awaited = self._row(source, self.x, self._column(ahead))
            for offset in aligned:
                write_prefetch(builder, self._move(awaited, offset))
            self._add(loop.index, self._row(source, self.x, self._column(loop.index)), offsets, sums)
        target = self._row(target, self.out, row)
        for total, offset in zip(sums, offsets, strict=True):
            builder.store(builder.load(total), self._vector_at(target, offset), align=self.itemsize)

    def _column(self, entry: Any) -> Any:
        return self.builder.sext(self.builder.load(self.builder.gep(self.indices.data, [entry])), _INT64)

    def _row(self, base: Any, matrix: Any, row: Any) -> Any:
        return self._move(base, self.builder.mul(row, self.builder.extract_value(matrix.strides, 0)))

    def _move(self, place: Any, offset: Any) -> Any:
        return self.builder.gep(self.builder.bitcast(place, _BYTES), [offset])

    def _vector_at(self, place: Any, offset: Any) -> Any:
        return self.builder.bitcast(self._move(place, offset), self.vector.as_pointer())

    def _add(self, entry: Any, place: Any, offsets: list[Any], sums: list[Any]) -> None:
        builder, weight = self.builder, None
        if self.weights is not None:
            weight = self._spread(builder.load(builder.gep(self.weights.data, [entry])))
        for offset, total in zip(offsets, sums, strict=True):
            value = builder.load(self._vector_at(place, offset), align=self.itemsize)
            before = builder.load(total)
            after = (
                builder.fadd(before, value) if weight is None else self._multiply_add(weight, value, before)
            )
            builder.store(after, total)

    def _multiply_add(self, weight: Any, value: Any, before: Any) -> Any:
        name = f"llvm.fmuladd.v{self.vector.count}f{8 * self.itemsize}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [weight, value, before])

    def _spread(self, value: Any) -> Any:
        """Return a vector of equal elements."""
        builder, order = self.builder, ir.VectorType(_INT32, self.vector.count)
        nothing = ir.Constant(self.vector, ir.Undefined)
        return builder.shuffle_vector(
            builder.insert_element(nothing, value, _INT32(0)), nothing, ir.Constant(order, None)
        )


def _sum_row_of(
    _typing: Any,
    x: Any,
    out: Any,
    indices: Any,
    weights: Any,
    start: Any,
    stop: Any,
    row: Any,
    first: Any,
    last: Any,
    lanes: Any,
    count: Any,
) -> Any:
    """Store in out[row] the sum of the rows x[indices[e]], times weights[e], over `start` <= e < `stop`.

    It is that of the columns in `count` vectors of `lanes` elements, side by side from column `first` on, but
    for the last one, from column `last` on. Fewer lanes than a cache line has are for narrow matrices, in at
    most two vectors.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [
            None if isinstance(kind, types.NoneType) else context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:4], arguments[:4], strict=True)
        ]
        *places, lanes, count = arguments[4:]
        element, full = context.get_data_type(x.dtype), 8 * LINE // x.dtype.bitwidth
        stored = builder.append_basic_block("stored")
        choice = builder.switch(builder.add(builder.mul(lanes, _INT64(2 * MOST)), count), stored)
        for size, most in [(full, MOST), *((full >> k, 2) for k in range(1, full.bit_length()))]:
            for number in range(1, most + 1):
                case = builder.append_basic_block(f"lanes{size}vectors{number}")
                choice.add_case(_INT64(2 * MOST * size + number), case)
                builder.position_at_end(case)
                _Sum(builder, ir.VectorType(element, size), number, *arrays).write(*places)
                builder.branch(stored)
        builder.position_at_end(stored)
        return context.get_dummy_value()

    return types.void(x, out, indices, weights, *(types.int64,) * 7), generate


_sum_row: Any = intrinsic(_sum_row_of)


@numba.njit(cache=True, nogil=True)
def multiply_rows(start, stop, indptr, indices, weights, x, out, slab, held):  # type: ignore[no-untyped-def]
    """Write rows `start` <= r < `stop` of the product of a CSR and `x` to `out`, slab by slab of columns.

    An element is the sum in the order of its row's entries, whatever the rows, slabs and registers are.

    Args:
        start: first row.
        stop: after the last row.
        indptr: int64 [rows + 1].
        indices: int32 [nnz].
        weights: [nnz] of the dtype of `x`, or None: every entry counts one.
        x: float32 or float64 [cols, width], columns side by side.
        out: [rows, width], likewise.
        slab: vectors of `LINE` bytes a slab has at most, at least 1.
        held: vectors that registers hold, 1 to `MOST`; a slab of more takes several passes over a row.
    """
    width, lanes = x.shape[1], LINE // x.itemsize
    while lanes > max(width, 1):
        lanes //= 2
    vectors = (width + lanes - 1) // lanes
    slabs, first = (vectors + slab - 1) // slab, 0
    for part in range(1, slabs + 1):
        end = vectors * part // slabs
        passes = (end - first + held - 1) // held
        step = (end - first + passes - 1) // passes
        for r in range(start, stop):
            at = first
            while at < end:
                count = min(step, end - at)
                # The row's last vector ends with the row: it may overlap the one before.
                last = min((at + count - 1) * lanes, width - lanes)
                _sum_row(
                    x, out, indices, weights, indptr[r], indptr[r + 1], r, at * lanes, last, lanes, count
                )
                at += step
        first = end
