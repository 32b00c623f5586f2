"""Products of a sparse matrix and rows: our kernels for CPUs and for GPUs, torch, DGL.

Not numba's own threads: compiling for them takes seconds, one thread of a process at a time may use them
(a prefetching one would be a second), and a serial and a parallel kernel of one function share, and so
spoil, each other's place in numba's cache.

numba's own loops keep a destination row in memory and add source rows to it. Here the sums of up to `MOST`
vectors never leave the registers, and the rows of the entries to come are prefetched. numba has no vectors,
so the loop over a row's entries is written in LLVM's language, with vectors of a cache line's size, which
LLVM splits where a machine's registers are smaller.

`auto` takes numba on every CPU: weighted or not, at every width and size measured it takes 0.4 to 0.7 of the
time of the faster one of the other two (docs/design/numerics.md; tests/benchmarks/test_spmm.py). On a GPU it takes
triton where that can be imported, torch elsewhere: not measured.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.deferred import Deferred, intrinsic, numba, torch
from harness.deferred import numpy as np
from harness.errors import UserError
from harness.graph.csr import CSR
from harness.graph.devices import fresh
from harness.graph.kernels import write_prefetch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

ir: Any = Deferred("llvmlite.ir")
cgutils: Any = Deferred("numba.core.cgutils")

LEAST_WORK = 10_000  # entries that are worth a thread


def unrounded(rows: Tensor) -> Tensor:
    """Return rows in float32 if they are in bfloat16."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def row_chunks(matrix: CSR) -> NDArray[np.int64]:
    """Return the first row of each part, and the number of rows: as many parts as threads, of equal work."""
    indptr = matrix.indptr.numpy()
    parts = min(torch.get_num_threads(), 1 + matrix.nnz // LEAST_WORK)
    bounds: NDArray[np.int64] = np.searchsorted(indptr, np.arange(parts + 1) * matrix.nnz // parts)
    bounds[0], bounds[-1] = 0, matrix.num_rows
    return bounds


def run_chunks(work: Callable[[int], None], parts: int) -> None:
    """Call `work(0)` here and the others, up to `work(parts - 1)`, in threads; raises what one of them raised.

    `work` may not call this in turn: the threads are a process's, kept because they take long to start.
    """
    others = [_pool(os.getpid(), parts).submit(work, part) for part in range(1, parts)]
    try:
        work(0)
    finally:
        wait(others)
    for done in others:
        done.result()


@cache
def _pool(process: int, parts: int) -> ThreadPoolExecutor:
    # By process: a forked one has its parent's pools, but none of their threads.
    return ThreadPoolExecutor(parts - 1, thread_name_prefix=f"parts-of-{process}")


LINE = 64  # bytes of a vector
MOST = 16  # vectors that a pass over a row's entries can sum
_AHEAD = 16  # entries from the one whose row is added to the one whose row is prefetched


def _int64(value: int) -> Any:
    return ir.IntType(64)(value)


def _moved(builder: Any, place: Any, offset: Any, kind: Any = None) -> Any:
    """Return the place so many bytes on, of a value of `kind`."""
    found = builder.gep(builder.bitcast(place, ir.IntType(8).as_pointer()), [offset])
    return found if kind is None else builder.bitcast(found, kind.as_pointer())


def _read(builder: Any, place: Any, offset: Any, vector: Any, given: int, itemsize: int) -> Any:
    """Return the vector that is read there, of elements of `given` bytes; half of an item's are bfloat16."""
    if given == itemsize:
        return builder.load(_moved(builder, place, offset, vector), align=itemsize)
    short, wide = (ir.VectorType(ir.IntType(bits), vector.count) for bits in (16, 32))
    upper = builder.zext(builder.load(_moved(builder, place, offset, short), align=given), wide)
    return builder.bitcast(builder.shl(upper, ir.Constant(wide, [16] * vector.count)), vector)


def _write_sum(
    builder: Any, vector: Any, count: int, itemsize: int, given: int, x: Any, out: Any, indices: Any,
    weights: Any | None, start: Any, stop: Any, row: Any, first: Any, last: Any,
) -> None:  # fmt: skip
    """Write with `builder` the code that sums one row's entries in `count` vectors of a kind, and stores the sums.

    Values are LLVM's; `x` and what follows it as `_sum_row` has them. `itemsize`, `given`: bytes of an element of
    `out` and of `x`.
    """

    def row_at(base: Any, matrix: Any, row: Any) -> Any:
        return _moved(builder, base, builder.mul(row, builder.extract_value(matrix.strides, 0)))

    def source_of(entry: Any) -> Any:
        column = builder.sext(builder.load(builder.gep(indices.data, [entry])), ir.IntType(64))
        return row_at(source, x, column)

    def offsets(size: int) -> list[Any]:
        # The last vector ends where the columns do, so that nothing beyond is read: it overlaps the one before.
        aligned = [_int64(vector.count * size * k) for k in range(count - 1)]
        return [*aligned, builder.mul(builder.sub(last, first), _int64(size))]

    places = offsets(given)
    source = _moved(builder, x.data, builder.mul(first, _int64(given)))
    target = _moved(builder, out.data, builder.mul(first, _int64(itemsize)))
    # Memory by its form only: LLVM keeps it in registers.
    sums = [cgutils.alloca_once(builder, vector) for _ in range(count)]
    for total in sums:
        builder.store(ir.Constant(vector, None), total)
    final = builder.sub(builder.extract_value(indices.shape, 0), _int64(1))
    with cgutils.for_range(builder, stop, start) as loop:
        # Past this row's end too: a row is often shorter than the wait for memory. Never past the array's.
        ahead = builder.add(loop.index, _int64(_AHEAD))
        awaited = source_of(builder.select(builder.icmp_signed("<", ahead, final), ahead, final))
        for line in range(0, vector.count * given * count, LINE):
            write_prefetch(builder, _moved(builder, awaited, _int64(line)))
        place = source_of(loop.index)
        weight = multiply_add = None
        if weights is not None:
            one = builder.load(builder.gep(weights.data, [loop.index]))
            lane = builder.insert_element(ir.Constant(vector, ir.Undefined), one, ir.IntType(32)(0))
            order = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
            weight = builder.shuffle_vector(lane, ir.Constant(vector, ir.Undefined), order)  # of equal elements
            name = f"llvm.fmuladd.v{vector.count}f{8 * itemsize}"
            kind = ir.FunctionType(vector, [vector] * 3)
            multiply_add = cgutils.get_or_insert_function(builder.module, kind, name)
        for offset, total in zip(places, sums, strict=True):
            value, before = _read(builder, place, offset, vector, given, itemsize), builder.load(total)
            after = builder.call(multiply_add, [weight, value, before]) if weight else builder.fadd(before, value)
            builder.store(after, total)
    target = row_at(target, out, row)
    for total, offset in zip(sums, offsets(itemsize), strict=True):
        builder.store(builder.load(total), _moved(builder, target, offset, vector), align=itemsize)


def _sum_row_of(_typing, x, out, indices, weights, start, stop, row, first, last, lanes, count):  # type: ignore[no-untyped-def]
    """Store in out[row] the sum of the rows x[indices[e]], times weights[e], over `start` <= e < `stop`.

    It is that of the columns in `count` vectors of `lanes` elements, side by side from column `first` on, but
    for the last one, from column `last` on. Narrow matrices have fewer lanes, and at most two vectors.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [
            None if isinstance(kind, numba.types.NoneType) else context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:4], arguments[:4], strict=True)
        ]
        *places, lanes, count = arguments[4:]
        itemsize, given = (rows.dtype.bitwidth // 8 for rows in (out, x))
        element, full = context.get_data_type(out.dtype), LINE // itemsize
        stored = builder.append_basic_block("stored")
        choice = builder.switch(builder.add(builder.mul(lanes, _int64(2 * MOST)), count), stored)
        # A case for each number of vectors: only with a constant one do the sums stay in registers.
        for size, most in [(full, MOST), *((full >> k, 2) for k in range(1, full.bit_length()))]:
            for number in range(1, most + 1):
                case = builder.append_basic_block(f"lanes{size}vectors{number}")
                choice.add_case(_int64(2 * MOST * size + number), case)
                builder.position_at_end(case)
                _write_sum(builder, ir.VectorType(element, size), number, itemsize, given, *arrays, *places)
                builder.branch(stored)
        builder.position_at_end(stored)
        return context.get_dummy_value()

    return numba.types.void(x, out, indices, weights, *(numba.types.int64,) * 7), generate


_sum_row: Any = intrinsic(_sum_row_of)


@numba.njit(cache=True, nogil=True)
def multiply_rows(start, stop, indptr, indices, weights, x, out, held):  # type: ignore[no-untyped-def]
    """Write rows `start` <= r < `stop` of the product of a CSR and `x` to `out`, by slabs of columns (Zeng et al.).

    An element is the sum in the order of its row's entries, whatever the rows and slabs are. `indptr`, `indices`,
    `weights`: int64 [rows + 1], int32 [nnz], and [nnz] of the dtype of `out`, or None for ones; `x`, `out`: float32
    or float64 [cols, width] and [rows, width], columns side by side, or `x` int16, the bits of bfloat16, and `out`
    float32; `held`: vectors of `LINE` bytes, 1 to `MOST`, that registers hold the sums of: the most that a slab has.
    """
    width, lanes = x.shape[1], LINE // out.itemsize
    # A matrix narrower than a cache line has shorter vectors, or its last one would begin before the row.
    while lanes > max(width, 1):
        lanes //= 2
    vectors = (width + lanes - 1) // lanes
    slabs, first = (vectors + held - 1) // held, 0
    for part in range(1, slabs + 1):
        end = vectors * part // slabs
        last = min((end - 1) * lanes, width - lanes)
        for r in range(start, stop):
            _sum_row(x, out, indices, weights, indptr[r], indptr[r + 1], r, first * lanes, last, lanes, end - first)
        first = end


def multiply_by_torch(matrix: CSR, x: Tensor) -> Tensor:
    """See `Engine`: torch's sparse CSR product, for every device and dtype; columns may be in any order."""
    x = unrounded(x)
    key = ("torch", x.dtype)
    if key not in matrix.handles:
        values = matrix.values
        values = _ones(matrix.nnz, x.device, x.dtype) if values is None else values.to(x.dtype)
        # Both have to be of one dtype; columns are four bytes, and an entry's place mostly needs no more.
        short = matrix.nnz < 2**31
        indices = (matrix.indptr.int(), matrix.indices) if short else (matrix.indptr, matrix.indices.long())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            matrix.handles[key] = torch.sparse_csr_tensor(*indices, values, (matrix.num_rows, matrix.num_cols))
    product: Tensor = matrix.handles[key] @ x
    return product


def _ones(count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return so many ones, which a process's matrices share."""
    held = _held_ones(device, dtype)
    if held[0].numel() < count:
        held[0] = torch.ones(count, device=device, dtype=dtype)
    return held[0][:count]


@cache
def _held_ones(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    return [torch.ones(0, device=device, dtype=dtype)]


def multiply_by_triton(matrix: CSR, x: Tensor) -> Tensor:
    """See `Engine`: row sums by kernels that triton compiles, for GPUs, weighted or not, without a copy of the matrix.

    ValueError if there are more rows than a GPU's grid has programs.
    """
    from harness.graph import triton_kernels  # triton need not be there

    return triton_kernels.multiply(matrix, x)


def multiply_by_dgl(matrix: CSR, x: Tensor) -> Tensor:
    """See `Engine`: DGL's CPU kernels (libxsmm), Linux x86-64 and Python < 3.12."""
    import dgl

    if "dgl" not in matrix.handles:
        # Without explicit edge ids DGL reads through a null pointer: with weights at width 1; without
        # them where 2000 bytes x width x entries a row exceed the last cache, and it cuts columns up.
        ids = torch.arange(matrix.nnz, dtype=torch.int32)
        matrix.handles["dgl"] = dgl.create_block(
            ("csc", (matrix.indptr.int(), matrix.indices, ids)),
            num_src_nodes=matrix.num_cols,
            num_dst_nodes=matrix.num_rows,
        )
    graph, values, x = matrix.handles["dgl"], matrix.values, unrounded(x)
    product: Tensor = (
        dgl.ops.copy_u_sum(graph, x)
        if values is None
        else dgl.ops.u_mul_e_sum(graph, x, values.to(x.dtype).unsqueeze(1))
    )
    return product


def multiply_by_numba(matrix: CSR, x: Tensor) -> Tensor:
    """See `Engine`: row sums in registers, by kernels that numba compiles, for every CPU, weighted or not.

    Sums do not depend on the number of threads.
    """
    rounded = x.dtype == torch.bfloat16
    out = fresh(x, matrix.num_rows, x.shape[1], dtype=torch.float32 if rounded else None)
    bounds, x = row_chunks(matrix), x.contiguous()
    weights = None if matrix.values is None else matrix.values.to(out.dtype).numpy()
    rows = (x.view(torch.int16) if rounded else x).numpy()
    operands = matrix.indptr.numpy(), matrix.indices.numpy(), weights, rows, out.numpy(), held_vectors()
    run_chunks(lambda part: multiply_rows(bounds[part], bounds[part + 1], *operands), bounds.size - 1)
    return out


def held_vectors() -> int:
    """Return how many vectors of `LINE` bytes this machine's registers hold in addition to what else they have to."""
    return MOST if torch.backends.cpu.get_cpu_capability() == "AVX512" else MOST // 2


class Engine(NamedTuple):
    """What multiplies a CSR [rows, cols] with a dense matrix [cols, width]."""

    name: str
    # Returns matrix @ x, [rows, width], dtype and device of `x`; rows of bfloat16 are summed, and returned, in float32.
    multiply: Callable[[CSR, Tensor], Tensor]


ENGINES = {
    "torch": Engine("torch", multiply_by_torch),
    "dgl": Engine("dgl", multiply_by_dgl),
    "numba": Engine("numba", multiply_by_numba),
    "triton": Engine("triton", multiply_by_triton),
}
WHERE_TO_GET = {
    "dgl": "pip install '.[dgl]'; Linux x86-64 and Python < 3.12 only",
    "triton": "torch's CUDA builds for Linux bring it",
}


@cache
def engine_problem(name: str) -> str | None:
    """Return why the engine `dgl` or `triton` cannot be used here, or None."""
    if importlib.util.find_spec(name) is None:
        return f"{name} is not installed ({WHERE_TO_GET[name]})"
    try:
        os.environ.setdefault("DGLBACKEND", "pytorch")
        importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        return f"{name} does not import: {error}"
    return None


def choose_engine(name: str, *, device: torch.device) -> Engine:
    """Return the engine called `name`; `auto` is the fastest one on `device`, of a GPU what is thought to be.

    UserError if it is not installed, or does not run there.
    """
    if name == "auto":
        on_gpu = "triton" if device.type == "cuda" and engine_problem("triton") is None else "torch"
        return ENGINES["numba" if device.type == "cpu" else on_gpu]
    if name in WHERE_TO_GET and (problem := engine_problem(name)):
        instead = "auto, numba or torch" if name == "dgl" else "auto or torch"
        raise UserError(f"'{name}': {problem}", key="train.spmm", fix=f"use {instead}")
    # Its interpreter runs Triton's kernels on CPUs, for tests.
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if name == "triton" and device.type != "cuda" and not interpreted:
        raise UserError("'triton' runs on GPUs only", key="train.spmm", fix="use auto, numba or torch")
    if name in ("dgl", "numba") and device.type != "cpu":
        raise UserError(f"'{name}' runs on CPUs only", key="train.spmm", fix="use auto, triton or torch")
    return ENGINES[name]
