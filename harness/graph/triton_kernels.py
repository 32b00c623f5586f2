"""Products and attention over the rows of a CSR, by kernels that triton compiles for a GPU.

A program sums one row, or one piece of it: of a row of more than `CHUNK` entries every further piece has a program of
its own, because graphs have rows thousands of times as long as others, and what the longest takes would be waited for.
The number of such pieces is known without asking the device (they are at most `nnz // CHUNK`), so that nothing here
waits for it. What pieces of a row sum meets in a second kernel, in the order of the pieces.

Sums are made in float32, of float64 rows in float64. They do not depend on the device's scheduling, but for the
gradient of attention's queries, which sources add to by atomic additions.

Nothing here was measured on a GPU: `CHUNK` and the tiles are guesses (docs/design/numerics.md). With
TRITON_INTERPRET=1 in the environment the kernels run on a CPU, for tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.graph.csr import CSR
from harness.graph.kernels import SLOPE

if TYPE_CHECKING:
    from harness.graph.attention import Edges, Gradients, Sums

CHUNK = 1024  # entries of a row that one program sums
_MOST_COLUMNS = 256  # of a program
_TILE = 2048  # elements that a program loads at once
_MOST_PROGRAMS = 2**31 - 1  # along a grid's first axis; 65,535 along the others


def pieces_of(matrix: CSR) -> tuple[int, Tensor]:
    """Cut the rows of a matrix into pieces of at most `CHUNK` entries; a row has at least one.

    Returns how many pieces beyond each row's first there are at most, and int64 [rows + 1], how many of them the rows
    before have. ValueError if a grid has not so many programs.
    """
    key = "triton", CHUNK
    if key not in matrix.handles:
        most = matrix.nnz // CHUNK
        if matrix.num_rows + most > _MOST_PROGRAMS:
            raise ValueError(
                f"{matrix.num_rows} rows of {matrix.nnz} entries are more than the {_MOST_PROGRAMS} programs "
                "a GPU's grid has: use more ranks, or `train.spmm: torch`"
            )
        further = (matrix.indptr.diff() - 1).clamp_(min=0) // CHUNK
        matrix.handles[key] = most, torch.cat([further.new_zeros(1), further.cumsum(0)])
    most, before = matrix.handles[key]
    return most, before


def multiply(matrix: CSR, x: Tensor) -> Tensor:
    """Return matrix @ x; ValueError if there are more rows or columns than a grid has programs."""
    x = x.contiguous()
    summed = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = x.new_empty((matrix.num_rows, x.shape[1]), dtype=summed)
    if out.numel() == 0:
        return out
    (most, before), (entries, columns, across) = pieces_of(matrix), _tile(x.shape[1])
    scratch = x.new_empty((2 * most, x.shape[1]), dtype=summed)
    weights = x if matrix.values is None else matrix.values.contiguous()
    _multiply[(matrix.num_rows + most, across)](
        matrix.indptr, matrix.indices, weights, x, out, scratch, before,
        matrix.num_rows, most, x.shape[1], matrix.values is not None, _sums(x), CHUNK, entries, columns,
    )  # fmt: skip
    _meet(most, before, scratch, out)
    return out


def attend(sums: Sums, edges: Edges, z: Tensor, key: Tensor, query: Tensor) -> None:
    """Do what `harness.graph.attention.Sums.add` does."""
    (heads, width), matrix = z.shape[1:], edges.matrix
    rows, total, peak = sums.rows, sums.total, sums.peak
    if rows.numel() == 0:
        return
    (most, before), (entries, columns, across) = pieces_of(matrix), _tile(width)
    _check(heads)
    # Programs of several columns read the old ones.
    new_total, new_peak = torch.empty_like(total), torch.empty_like(peak)
    scratch = rows.new_empty((most, heads, width))
    totals, peaks = (rows.new_empty((most, heads)) for _ in range(2))
    factors, there = _factors(edges, key)
    _attend[(matrix.num_rows + most, heads, across)](
        matrix.indptr, matrix.indices, *factors, z.contiguous(), key.contiguous(),
        query.contiguous(), rows, total, peak, new_total, new_peak, scratch, totals, peaks, before,
        matrix.num_rows, heads, width, *there, _sums(rows), CHUNK, entries, columns,
    )  # fmt: skip
    if most:
        _meet_at_peaks[(most, heads)](
            rows, new_total, new_peak, scratch, totals, peaks, before, matrix.num_rows, heads, width,
            _sums(rows), columns,
        )  # fmt: skip
    total.copy_(new_total)
    peak.copy_(new_peak)


def spread(edges: Edges, z: Tensor, key: Tensor, grad: Tensor, state: Tensor, own: slice) -> Gradients:
    """Do what `harness.graph.attention.spread` does."""
    (heads, width), matrix = z.shape[1:], edges.matrix
    to_z, to_key = torch.zeros_like(z, dtype=key.dtype), torch.zeros_like(key)
    to_query = key.new_zeros((grad.shape[0], heads))
    if matrix.num_rows == 0 or heads == 0:
        return to_z.to(z.dtype), to_key, to_query
    (most, before), (entries, columns, across) = pieces_of(matrix), _tile(width)
    _check(heads)
    scratch, keys = (key.new_empty((2 * most, count)) for count in (heads * width, heads))
    factors, there = _factors(edges, key)
    _spread[(matrix.num_rows + most, heads, across)](
        matrix.indptr, matrix.indices, *factors, z.contiguous(), key.contiguous(),
        grad.contiguous(), state.contiguous(), to_z, to_key, to_query, scratch, keys, before,
        matrix.num_rows, most, heads, width, own.start, own.stop, *there, _sums(key), CHUNK, entries, columns,
    )  # fmt: skip
    _meet(most, before, scratch, to_z.view(len(to_z), heads * width))
    _meet(most, before, keys, to_key)
    return to_z.to(z.dtype), to_key, to_query


def _tile(width: int) -> tuple[int, int, int]:
    """Return the entries and columns that a program loads at once, powers of two, and the programs across a row."""
    columns = min(triton.next_power_of_2(max(width, 1)), _MOST_COLUMNS)
    across = max(1, triton.cdiv(width, columns))
    _check(across)
    return min(32, _TILE // columns), columns, across


def _check(programs: int) -> None:
    if programs > 65_535:
        raise ValueError(f"{programs} heads, or groups of columns, are more than the 65535 programs a GPU's grid has")


def _sums(x: Tensor) -> tl.dtype:
    """Return what rows like these are summed in."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def _factors(edges: Edges, like: Tensor) -> tuple[list[Tensor], list[bool]]:
    """Return the three factors of edges, or what is not read in their places, and which of them there are."""
    factors = edges.matrix.values, edges.row_scale, edges.column_scale
    return [like if each is None else each.contiguous() for each in factors], [each is not None for each in factors]


def _meet(most: int, before: Tensor, scratch: Tensor, out: Tensor) -> None:
    """Write to `out` [rows, width] the sums of the rows that have several pieces."""
    if most and out.shape[1]:
        _, columns, across = _tile(out.shape[1])
        _meet_rows[(most, across)](scratch, out, before, out.shape[0], most, out.shape[1], columns)


_SLOPE = tl.constexpr(SLOPE)
_LOWEST = tl.constexpr(-1e38)  # infinity less infinity would not be a number

# Numbers that change with every sample, and arrays whose first element lies anywhere: a kernel compiled for those that
# are multiples of 16 would be compiled again, in an epoch, for those that are not.
_jit = triton.jit(
    do_not_specialize=["num_rows", "most", "first_own", "last_own"],
    do_not_specialize_on_alignment=["indptr", "indices", "values", "row_scale", "column_scale", "before"],
)


@triton.jit
def _row_of(before, num_rows, slot):  # type: ignore[no-untyped-def]
    """Return the row that the further piece number `slot` belongs to; of a number there is not, the last one."""
    low = slot * 0
    high = low + num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(before + middle) <= slot:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _piece(program, indptr, before, num_rows, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return row, number of the piece in it, first entry, the one after the last, and whether there is such a piece.

    Programs below `num_rows` have the first pieces, so that rows of one piece search for nothing.
    """
    row = program
    piece = program * 0
    if program >= num_rows:
        slot = program - num_rows
        row = _row_of(before, num_rows, slot)
        piece = slot - tl.load(before + row) + 1
    first = tl.load(indptr + row) + piece * CHUNK
    end = tl.load(indptr + row + 1)
    return row, piece, first, tl.minimum(first + CHUNK, end), (piece == 0) | (first < end)


@triton.jit
def _store(out, scratch, before, total, row, piece, most, there, step, columns, within):  # type: ignore[no-untyped-def]
    """Store a row's sum in `out`, or that of one of several pieces in `scratch`: first pieces behind all others."""
    begin = tl.load(before + row)
    several = tl.load(before + row + 1) > begin
    place = begin + tl.where(piece == 0, most, piece - 1)
    tl.store(out + row * step + columns, total.to(out.dtype.element_ty), mask=within & there & (several == 0))
    tl.store(scratch + place * step + columns, total, mask=within & there & several)


@_jit
def _multiply(  # type: ignore[no-untyped-def]
    indptr, indices, values, x, out, scratch, before, num_rows, most, width,
    WEIGHTED: tl.constexpr, SUM: tl.constexpr, CHUNK: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, piece, first, last, there = _piece(program, indptr, before, num_rows, CHUNK)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < width
    # A sum for each place in the tile: they meet once, behind the loop.
    sums = tl.zeros([ENTRIES, COLUMNS], SUM)
    for start in range(first, last, ENTRIES):
        entries = start + tl.arange(0, ENTRIES)
        live = entries < last
        sources = tl.load(indices + entries, mask=live, other=0).to(tl.int64)
        places = x + sources[:, None] * width + columns[None, :]
        terms = tl.load(places, mask=live[:, None] & within[None, :], other=0).to(SUM)
        if WEIGHTED:
            terms *= tl.load(values + entries, mask=live, other=0).to(SUM)[:, None]
        sums += terms
    _store(out, scratch, before, tl.sum(sums, 0), row, piece, most, there, width, columns, within)


@_jit
def _meet_rows(scratch, out, before, num_rows, most, width, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    slot = tl.program_id(0).to(tl.int64)
    row = _row_of(before, num_rows, slot)
    begin = tl.load(before + row)
    if begin == slot:  # the first of its row: of the others nobody is one, nor of those that there are not
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        within = columns < width
        total = tl.load(scratch + (most + slot) * width + columns, mask=within)
        for other in range(slot, tl.load(before + row + 1)):
            total += tl.load(scratch + other * width + columns, mask=within)
        several = tl.load(before + row + 1) > begin
        tl.store(out + row * width + columns, total.to(out.dtype.element_ty), mask=within & several)


@triton.jit
def _count(  # type: ignore[no-untyped-def]
    values, row_scale, column_scale, row, entries, columns, live,
    WEIGHTED: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr, SUM: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Return what edges count."""
    count = tl.full([ENTRIES], 1, SUM)
    if WEIGHTED:
        count *= tl.load(values + entries, mask=live, other=0).to(SUM)
    if ROW:
        count *= tl.load(row_scale + row).to(SUM)
    if COLUMN:
        count *= tl.load(column_scale + columns, mask=live, other=0).to(SUM)
    return count


@_jit
def _attend(  # type: ignore[no-untyped-def]
    indptr, indices, values, row_scale, column_scale, z, key, query, rows, total, peak, new_total, new_peak,
    scratch, totals, peaks, before, num_rows, heads, width,
    WEIGHTED: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr, SUM: tl.constexpr, CHUNK: tl.constexpr,
    ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, piece, first, last, there = _piece(tl.program_id(0).to(tl.int64), indptr, before, num_rows, CHUNK)
    head, group = tl.program_id(1), tl.program_id(2)
    columns = group * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < width
    here = row * heads + head
    asked = tl.load(query + here).to(SUM)
    # The first piece goes on from the sums so far; the others begin with nothing, and have at least one entry.
    so_far = tl.load(peak + here).to(SUM)
    top = tl.where(piece == 0, so_far, _LOWEST)
    count_so_far = tl.where(piece == 0, tl.load(total + here).to(SUM), 0)
    begun = tl.load(rows + here * width + columns, mask=within & (piece == 0), other=0).to(SUM)
    sums = tl.zeros([ENTRIES, COLUMNS], SUM)
    counted = tl.zeros([ENTRIES], SUM)
    start_top = top
    for start in range(first, last, ENTRIES):
        entries = start + tl.arange(0, ENTRIES)
        live = entries < last
        sources = tl.load(indices + entries, mask=live, other=0).to(tl.int64)
        count = _count(
            values, row_scale, column_scale, row, entries, sources, live, WEIGHTED, ROW, COLUMN, SUM, ENTRIES
        )
        score = asked + tl.load(key + sources * heads + head, mask=live, other=0).to(SUM)
        score = tl.where(score > 0, score, score * _SLOPE)
        highest = tl.maximum(top, tl.max(tl.where(live, score, _LOWEST), 0))
        kept = tl.exp(top - highest)
        term = tl.where(live, count * tl.exp(score - highest), 0)
        counted = counted * kept + term
        places = z + (sources * heads + head)[:, None] * width + columns[None, :]
        found = tl.load(places, mask=live[:, None] & within[None, :], other=0).to(SUM)
        sums = sums * kept + term[:, None] * found
        top = highest
    kept = tl.exp(start_top - top)
    result = begun * kept + tl.sum(sums, 0)
    terms = count_so_far * kept + tl.sum(counted, 0)
    tl.store(rows + here * width + columns, result.to(rows.dtype.element_ty), mask=within & (piece == 0))
    place = (tl.load(before + row) + piece - 1) * heads + head
    tl.store(scratch + place * width + columns, result, mask=within & there & (piece > 0))
    if group == 0:
        tl.store(new_total + here, terms.to(new_total.dtype.element_ty), mask=piece == 0)
        tl.store(new_peak + here, top.to(new_peak.dtype.element_ty), mask=piece == 0)
        tl.store(totals + place, terms, mask=there & (piece > 0))
        tl.store(peaks + place, top, mask=there & (piece > 0))


@_jit
def _meet_at_peaks(  # type: ignore[no-untyped-def]
    rows, total, peak, scratch, totals, peaks, before, num_rows, heads, width, SUM: tl.constexpr, COLUMNS: tl.constexpr
):
    slot = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = _row_of(before, num_rows, slot)
    begin, end = tl.load(before + row), tl.load(before + row + 1)
    if (begin == slot) & (end > begin):
        here = row * heads + head
        first = tl.load(peak + here).to(SUM)
        top = first
        for other in range(begin, end):
            top = tl.maximum(top, tl.load(peaks + other * heads + head))
        kept = tl.exp(first - top)
        terms = tl.load(total + here).to(SUM) * kept
        for other in range(begin, end):
            place = other * heads + head
            terms += tl.load(totals + place) * tl.exp(tl.load(peaks + place) - top)
        tl.store(total + here, terms.to(total.dtype.element_ty))
        tl.store(peak + here, top.to(peak.dtype.element_ty))
        for left in range(0, width, COLUMNS):
            columns = left + tl.arange(0, COLUMNS)
            within = columns < width
            result = tl.load(rows + here * width + columns, mask=within).to(SUM) * kept
            for other in range(begin, end):
                place = other * heads + head
                factor = tl.exp(tl.load(peaks + place) - top)
                result += tl.load(scratch + place * width + columns, mask=within) * factor
            tl.store(rows + here * width + columns, result.to(rows.dtype.element_ty), mask=within)


@_jit
def _spread(  # type: ignore[no-untyped-def]
    indptr, indices, values, row_scale, column_scale, z, key, grad, state, to_z, to_key, to_query,
    scratch, keys, before, num_rows, most, heads, width, first_own, last_own,
    WEIGHTED: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr, SUM: tl.constexpr, CHUNK: tl.constexpr,
    ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, piece, first, last, there = _piece(tl.program_id(0).to(tl.int64), indptr, before, num_rows, CHUNK)
    head, group = tl.program_id(1), tl.program_id(2)
    columns = group * COLUMNS + tl.arange(0, COLUMNS)
    within = columns < width
    here = row * heads + head
    own = tl.load(key + here).to(SUM)
    values_here = tl.load(z + here * width + columns, mask=within, other=0).to(SUM)
    # The self loop is the entry behind the last one of the first piece.
    loop = ((piece == 0) & (row >= first_own) & (row < last_own)).to(tl.int64)
    sums = tl.zeros([ENTRIES, COLUMNS], SUM)
    changes = tl.zeros([ENTRIES], SUM)
    for start in range(first, last + loop, ENTRIES):
        entries = start + tl.arange(0, ENTRIES)
        stored = entries < last
        live = entries < last + loop
        targets = tl.where(stored, tl.load(indices + entries, mask=stored, other=0).to(tl.int64), row)
        count = _count(
            values, row_scale, column_scale, row, entries, targets, stored, WEIGHTED, ROW, COLUMN, SUM, ENTRIES
        )
        count = tl.where(stored, count, 1)
        at = state + targets * (4 * heads) + head
        score = tl.load(at, mask=live, other=0).to(SUM) + own
        highest = tl.load(at + heads, mask=live, other=0).to(SUM)
        inverse = tl.load(at + 2 * heads, mask=live, other=0).to(SUM)
        mean = tl.load(at + 3 * heads, mask=live, other=0).to(SUM)
        positive = (score > 0).to(SUM)
        steep = positive + (1 - positive) * _SLOPE  # a choice between two numbers would be one of float32
        weight = tl.where(live, count * tl.exp(tl.where(live, steep * score - highest, 0)) * inverse, 0)
        places = grad + (targets * heads + head)[:, None] * width
        found = tl.load(places + columns[None, :], mask=live[:, None] & within[None, :], other=0).to(SUM)
        sums += weight[:, None] * found
        if group == 0:
            product = tl.sum(found * values_here[None, :], 1)
            for left in range(COLUMNS, width, COLUMNS):
                others = left + tl.arange(0, COLUMNS)
                wide = others < width
                further = tl.load(places + others[None, :], mask=live[:, None] & wide[None, :], other=0).to(SUM)
                row_here = tl.load(z + here * width + others, mask=wide, other=0).to(SUM)
                product += tl.sum(further * row_here[None, :], 1)
            change = weight * (product - mean) * steep
            changes += change
            tl.atomic_add(to_query + targets * heads + head, change, mask=live, sem="relaxed")
    step = heads * width
    _store(
        to_z, scratch, before, tl.sum(sums, 0), row, piece, most, there, step, head * width + columns,
        within,
    )  # fmt: skip
    _store(to_key, keys, before, tl.sum(changes, 0), row, piece, most, there, heads, head, group == 0)
