"""Block: the edges that a layer aggregates over, and its propagation: how it weighs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from harness.deferred import Function, torch
from harness.deferred import numpy as np
from harness.graph.attention import Edges, Gradients, Sums, by_head, spread
from harness.graph.csr import CSR
from harness.graph.devices import fresh
from harness.graph.spmm import Engine, choose_engine, unrounded

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.function import FunctionCtx


@dataclass(frozen=True)
class Propagation:
    """A_ij = w_ij d_i^-left d_j^-right for an edge j -> i of weight w_ij, and A_ii for a self loop.

    d is a node's degree (the sum of its edges' weights) in the full graph, never in a sample; with a self
    loop 1 more, without one never below 1.
    """

    name: str  # key of what is cached for a propagation
    left: float = 0.0  # exponent of the destination's degree
    right: float = 0.0  # exponent of the source's
    self_loop: bool = False  # every node has an edge of weight 1 to itself, which is never sampled

    def factors(self, degree: Any, power: float) -> Any:
        """Return d^-power of nodes of these degrees, float arrays or tensors; None where it is 1 for all."""
        if power == 0:
            return None
        on_host = isinstance(degree, np.ndarray)
        d: Any = degree + 1 if self.self_loop else (np if on_host else torch).where(degree > 0, degree, 1)
        if power == 0.5:
            return 1 / np.sqrt(d) if on_host else torch.rsqrt(d)
        return 1 / d if power == 1 else d**-power


MEAN = Propagation("mean", left=1.0)
"""D^-1 A: GraphSAGE's mean."""
SYMMETRIC = Propagation("sym", left=0.5, right=0.5, self_loop=True)
"""D^-1/2 (A + I) D^-1/2 with D of A + I: GCN's."""


class Arriving(NamedTuple):
    """Source rows of which the destinations' are there, and `rest` gives the others, which it waits for."""

    own: Tensor
    rest: Callable[[], Tensor]


Transform = Callable[["Tensor"], "Tensor"]


@dataclass(frozen=True)
class OwnRows:
    """Where the own rows of destinations are that need not be sources: drawn as edges are, or not, which counts 0."""

    degree: Tensor  # float [num_dst], of the destinations, as `Block.degree`
    at: Tensor  # int64 [k], destinations whose own row is a source, ascending
    rows: Tensor  # int64 [k], distinct: which source it is
    scale: Tensor  # float [k], what the own row counts, e.g. 1/p
    loop: Tensor  # float [k], multiplies what the self loop counts in the propagation


class Block:
    """Edges from source rows to destination rows; unless `own` is given, the destinations are the first of the sources.

    A full-graph layer, a sampled layer and a subgraph are all Blocks. The propagation weights of the models factor
    into scalings of rows (see `Propagation`), so a Block stores none per edge unless `adjacency.values` is given.

    Args:
        adjacency: [num_dst, num_src], structure and optional edge weights that multiply the model's.
        degree: float [num_src], in-degrees (sums of weights, if there are any) in the *full* (training)
            graph, never those of a sample.
        dst_scale: float [num_dst] or None: multiplies the sum over a destination's neighbours (not its self
            loop), e.g. deg/k where k of deg neighbours were drawn.
        src_scale: float [num_src] or None: multiplies what a source counts for its neighbours (not for its
            self loop), e.g. 1/p where it was drawn with probability p.
        engine, transposed: name of the SpMM engine, and the transpose of `adjacency` if it is known already.
        own: None, or where the destinations' own rows are.

    `communicates`: whether `aggregate` and `attend` send the rows they are given; then every rank must call.
    """

    communicates: ClassVar[bool] = False

    def __init__(
        self,
        adjacency: CSR,
        degree: Tensor,
        *,
        dst_scale: Tensor | None = None,
        src_scale: Tensor | None = None,
        engine: str = "auto",
        transposed: CSR | None = None,
        own: OwnRows | None = None,
    ) -> None:
        self.adjacency, self.degree, self.own = adjacency, degree, own
        if degree.numel() != self.num_src or (own is None and self.num_dst > self.num_src):
            raise ValueError("a block needs the degree of every source row, destinations first")
        self.dst_scale, self.src_scale = dst_scale, src_scale
        self.engine: Engine = choose_engine(engine, device=adjacency.indptr.device)
        if transposed is not None:
            self.transposed = transposed
        self._scales: dict[Propagation, tuple[Tensor, Tensor | None, Tensor | None]] = {}

    @property
    def num_dst(self) -> int:
        """Number of destination rows."""
        return self.adjacency.num_rows

    @property
    def num_src(self) -> int:
        """Number of source rows."""
        return self.adjacency.num_cols

    @property
    def entries(self) -> int:
        """Number of edges that a product with the block reads a row for."""
        return self.adjacency.nnz

    @cached_property
    def transposed(self) -> CSR:
        """The transpose, for the backward pass; built once where it was not given."""
        return self.adjacency.transpose()

    def into(self, rows: Tensor) -> Block:
        """Return the block of the edges into some of its destinations: `rows`, int64, ascending."""
        own, places = self.own, torch.arange(rows.numel(), device=rows.device)
        if own is None:
            ones = self.degree.new_ones(rows.numel())
            own = OwnRows(self.degree[rows], places, rows, ones, ones)
        else:
            place = torch.full((self.num_dst,), -1, device=rows.device)
            place[rows] = places
            at = place[own.at]
            kept = at >= 0
            own = OwnRows(own.degree[rows], at[kept], own.rows[kept], own.scale[kept], own.loop[kept])
        scale = None if self.dst_scale is None else self.dst_scale[rows]
        return Block(
            self.adjacency.take_rows(rows), self.degree, dst_scale=scale, src_scale=self.src_scale,
            engine=self.engine.name, own=own,
        )  # fmt: skip

    def scales(self, propagation: Propagation) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Columns left [num_dst, 1], right [num_src, 1] or None, self loop [num_dst, 1] (or of `OwnRows.at`) or None.

        The propagation matrix is diag(left) adjacency diag(right) and the self loops.
        """
        if propagation not in self._scales:
            own, drawn = None, self.own
            degree = self.degree[: self.num_dst] if drawn is None else drawn.degree
            right = propagation.factors(self.degree, propagation.right)
            left = propagation.factors(degree, propagation.left)
            if left is None:
                left = torch.ones_like(degree)
            if propagation.self_loop:
                if drawn is None:
                    own = left if right is None else left * right[: self.num_dst]
                else:
                    own = left[drawn.at] * drawn.loop
                    own = own if right is None else own * right[drawn.rows]
                own = own.unsqueeze(1)
            if self.dst_scale is not None:
                left = left * self.dst_scale
            if self.src_scale is not None:
                right = self.src_scale if right is None else right * self.src_scale
            self._scales[propagation] = (left.unsqueeze(1), None if right is None else right.unsqueeze(1), own)
        return self._scales[propagation]

    def own_rows(self, h: Tensor, *, scaled: bool = True) -> Tensor:
        """Return what the destinations' own rows count [num_dst, width], of `h` [num_src, width].

        Of a block whose rows an exchange completes, `h` may be the destinations' [num_dst, width]. Not `scaled`: rows
        that were drawn as they are, not times what they count.
        """
        if self.own is not None:
            found = h.index_select(0, self.own.rows)
            found = found * self.own.scale.unsqueeze(1) if scaled else found
            if self.own.at.numel() == self.num_dst:
                return found
            return found.new_zeros((self.num_dst, h.shape[1])).index_copy(0, self.own.at, found)
        # The gradient of a slice is a matrix of zeros to copy into, even where the slice is everything.
        return h if h.shape[0] == self.num_dst else h[: self.num_dst]

    def multiply(self, x: Tensor) -> Tensor:
        """Return A x [num_dst, width] of the source rows `x`, without scalings."""
        return self.engine.multiply(self.adjacency, x)

    def multiply_transposed(self, x: Tensor) -> Tensor:
        """Return A^T x [num_src, width] of the destination rows `x`, without scalings."""
        return self.engine.multiply(self.transposed, x)

    def aggregate(
        self, h: Tensor | Arriving, propagation: Propagation, of: Transform | None = None, *, rounded: bool = False
    ) -> Tensor:
        """Return the propagated rows [num_dst, width] of `h` [num_src, width]; of other rows, a ValueError.

        `of`: makes of any rows of `h` those that are propagated. `rounded`: sums, in both passes, are of rows in
        bfloat16, but for those of a block that communicates. Only a `HalvedBlock` takes rows that are arriving.
        """
        assert not isinstance(h, Arriving)
        self._check(h)
        rows = h if of is None else of(h)
        rows, rounded = (unrounded(rows), False) if self.communicates else (rows, rounded)
        result: Tensor = _Propagate.apply(rows, self, propagation, rounded)
        return result

    def attend(self, z: Tensor, to_key: Tensor, to_query: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the rows [num_dst, heads * width] that each head's attention adds up, and `bias` [heads * width].

        `z`: [num_src, heads * width], the transformed rows W h; of other rows, a ValueError. `to_key`, `to_query`:
        [heads, width], a_src and a_dst, the two halves of the vector a.
        """
        self._check(z)
        result: Tensor = _Attend.apply(z, to_key, to_query, bias, self)
        return result

    def attention(self, z: Tensor, to_key: Tensor, query: Tensor) -> Sums:
        """Return the sums over in-neighbours and self loops of z [num_src, heads * width].

        `to_key`: [heads * width, heads], the keys are z to_key; `query`: [num_dst, heads].
        """
        key, rows = z @ to_key, by_head(z, to_key.shape[1])
        if self.own is None:
            sums = Sums.of_self_loops(rows, key, query, slice(0, self.num_dst))
            sums.add(Edges(self.adjacency, self.dst_scale, self.src_scale), rows, key, query)
        else:
            sums = Sums.of_nothing(rows, query)
            sums.add(Edges(self._attended[0]), rows, key, query)
            sums.total.masked_fill_(sums.total == 0, 1)  # of rows of which nothing was drawn: their sums are 0
        return sums

    def attention_backward(self, z: Tensor, to_key: Tensor, grad: Tensor, state: Tensor) -> Gradients:
        """Return the gradients of z, without what keys and queries add to it, of the keys and of the queries.

        They are [num_src, heads * width], [num_src, heads] and [num_dst, heads]. Arguments as in `attention`;
        for `grad` and `state` see `attention.spread`.
        """
        if self.own is None:
            edges, loops = Edges(self.transposed, self.src_scale, self.dst_scale), slice(0, self.num_dst)
        else:
            edges, loops = Edges(self._attended[1]), slice(0, 0)
        to_rows, keys, queries = spread(edges, by_head(z, to_key.shape[1]), z @ to_key, grad, state, loops)
        return to_rows.view(z.shape), keys, queries

    @cached_property
    def _attended(self) -> tuple[CSR, CSR]:
        """The edges and the drawn self loops in one matrix, with all that they count; and its transpose."""
        assert self.own is not None
        rows, columns, counts = Edges(self.adjacency, self.dst_scale, self.src_scale).spelled_out(self.degree)
        found = [(rows, columns, counts.squeeze(1)), (self.own.at, self.own.rows, self.own.scale)]
        every, sources, values = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = every.argsort(stable=True)
        pointers = torch.searchsorted(every[order], torch.arange(self.num_dst + 1, device=every.device))
        matrix = CSR(pointers, sources[order].int(), self.num_src, values[order])
        return matrix, matrix.transpose()

    def _check(self, rows: Tensor) -> None:
        if rows.shape[0] != self.num_src:
            raise ValueError(f"the block has {self.num_src} source rows, the matrix {rows.shape[0]}")


class HalvedBlock(Block):
    """The edges from the destinations, and those from the boundary: products with the first need no row of the others.

    Sums are those of the whole block but for their rounding: each half is scaled, then they are added.
    """

    def __init__(self, inner: Block, boundary: Block) -> None:
        self.halves = inner, boundary
        degree = torch.cat([half.degree for half in self.halves])
        super().__init__(inner.adjacency, degree, engine=inner.engine.name, own=inner.own)

    def into(self, rows: Tensor) -> Block:
        """See `Block`."""
        inner, boundary = self.halves
        return HalvedBlock(inner.into(rows), boundary.into(rows))

    @property
    def num_src(self) -> int:
        """See `Block`."""
        return sum(half.num_src for half in self.halves)

    @property
    def entries(self) -> int:
        """See `Block`."""
        return sum(half.entries for half in self.halves)

    def aggregate(
        self, h: Tensor | Arriving, propagation: Propagation, of: Transform | None = None, *, rounded: bool = False
    ) -> Tensor:
        """See `Block.aggregate`."""
        inner, boundary = self.halves
        if not isinstance(h, Arriving):
            self._check(h)
            rows = h
            h = Arriving(rows[: inner.num_src], lambda: rows[inner.num_src :])
        total = inner.aggregate(h.own, propagation, of, rounded=rounded)
        return total.add_(boundary.aggregate(h.rest(), propagation, of, rounded=rounded))


def own_rows(blocks: Sequence[Block], h: Tensor) -> Tensor:
    """Return what the last block's own rows count, of `h` for the sources of the first; of no blocks, `h`."""
    if all(block.own is None for block in blocks):
        return blocks[-1].own_rows(h) if blocks else h
    for block in blocks:
        h = block.own_rows(h)
    return h


class _Propagate(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, block: Block, propagation: Propagation, rounded: bool) -> Tensor:
        left, right, own = block.scales(propagation)
        out = block.multiply(_scaled(h, right, rounded))
        out.mul_(left)
        if own is not None:
            if block.own is None:
                out.addcmul_(own, h[: block.num_dst])
            else:
                out.index_add_(0, block.own.at, own * h[block.own.rows])
        ctx.block, ctx.propagation, ctx.rounded = block, propagation, rounded  # type: ignore[attr-defined]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        block = ctx.block
        left, right, own = block.scales(ctx.propagation)
        (grad,) = grads
        result = block.multiply_transposed(_scaled(grad, left, ctx.rounded))
        if right is not None:
            result.mul_(right)
        if own is not None:
            if block.own is None:
                result[: block.num_dst].addcmul_(own, grad)
            else:
                result.index_add_(0, block.own.rows, own * grad[block.own.at])
        return result, None, None, None


def _scaled(rows: Tensor, scale: Tensor | None, rounded: bool) -> Tensor:
    """Return rows [n, width] times `scale` [n, 1], if there is one; `rounded` to bfloat16."""
    dtype = torch.bfloat16 if rounded else rows.dtype
    if scale is None:
        return rows.to(dtype)
    return torch.mul(rows, scale, out=fresh(rows, *rows.shape, dtype=dtype))


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, to_key: Tensor, to_query: Tensor, bias: Tensor | None, block: Block) -> Tensor:
        z = z.contiguous()
        query = block.own_rows(z, scaled=False) @ _matrix(to_query)
        sums = block.attention(z, _matrix(to_key), query)
        out = sums.rows.div_(sums.total.unsqueeze(2)).view(block.num_dst, z.shape[1])  # in the place of the sums
        if bias is not None:
            out += bias
        ctx.save_for_backward(z, to_key, to_query, bias, query, sums.total, sums.peak, out)
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        z, to_key, to_query, bias, query, total, peak, out = ctx.saved_tensors
        grad, block = grads[0].contiguous(), ctx.block
        heads = len(to_key)
        product = grad * (out if bias is None else out - bias)
        state = torch.stack([query, peak, 1 / total, by_head(product, heads).sum(2)], 1)
        # The backward pass of the rows needs their memory.
        del product, out
        to_z, keys, queries = block.attention_backward(z, _matrix(to_key), by_head(grad, heads), state)
        by_head(to_z, heads).addcmul_(keys.unsqueeze(2), to_key)  # no product of matrices: MKL rounds by threads
        if block.own is None:
            by_head(to_z[: block.num_dst], heads).addcmul_(queries.unsqueeze(2), to_query)
        else:
            to_z.index_add_(0, block.own.rows, (queries[block.own.at].unsqueeze(2) * to_query).flatten(1))
        to_vectors = _vectors(z.t() @ keys, to_key), _vectors(block.own_rows(z, scaled=False).t() @ queries, to_query)
        return to_z, *to_vectors, None if bias is None else grad.sum(0), None


def _matrix(vectors: Tensor) -> Tensor:
    """Return the matrix [heads * width, heads] by which rows give each head's product with its vector."""
    heads = torch.eye(len(vectors), dtype=vectors.dtype, device=vectors.device)
    return (vectors.unsqueeze(2) * heads.unsqueeze(1)).view(-1, len(vectors))


def _vectors(gradient: Tensor, vectors: Tensor) -> Tensor:
    """Return the gradient of the vectors, given that of `_matrix`."""
    return gradient.view(*vectors.shape, -1).diagonal(dim1=0, dim2=2).t().contiguous()
