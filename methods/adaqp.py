"""AdaQP: rows packed by codecs of several widths, chosen by what their rounding costs and what their bytes cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Metric, Step, SyncExchange, Worker, torch
from harness import numpy as np
from harness.plugin import Codec, CodecName, MemoryCase, row_bytes, sums_of_rows, upload

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

CODECS: tuple[CodecName, ...] = ("int2", "int4", "int8")
WAYS = ("forward", "backward")
LEVELS = (3.0, 15.0, 255.0)  # 2^b - 1
Channel = tuple[int, str]  # a layer and a direction


class AdaQPOptions(FullGraphOptions):
    """Options of AdaQP."""

    weight: float = Field(
        0.5, gt=0, lt=1, description="of the variance in what is minimised; the rest is that of the time"
    )
    period: int = Field(50, ge=1, description="epochs between assignments; the first follows epoch 0")
    groups: int = Field(
        100,
        ge=1,
        repr=False,
        description="groups that an assignment divides a rank's rows into, by receiver and variance",
    )

    @model_validator(mode="after")
    def _has_its_own_codec(self) -> Self:
        if self.codec != "none" or self.feedback:
            raise ValueError("codec, feedback: adaqp chooses the codec of each row: leave them out")
        return self


@dataclass(frozen=True, eq=False)
class Coded:
    """The codec of each of some rows, which are grouped by peer."""

    codes: Tensor  # uint8 [n], places in `CODECS`
    at: list[Tensor]  # of each codec its rows, int64, ascending
    counts: list[list[int]]  # of each codec its rows of each peer

    @classmethod
    def of(cls, codes: Tensor, by_peer: Sequence[int]) -> Coded:
        """Divide the rows; the host waits for the codes."""
        on_host = codes.cpu()
        is_packed = [on_host == k for k in range(len(CODECS))]
        counts = [[int(part.sum()) for part in each.split(list(by_peer))] for each in is_packed]
        return cls(codes, [upload(each.nonzero().squeeze(1), codes.device) for each in is_packed], counts)


class AdaptiveExchange(SyncExchange):
    """One step's exchanges, in which each row has a codec; `traced`: the variance of each row's rounding is noted."""

    def __init__(self, method: AdaQP, *, traced: bool) -> None:
        super().__init__(method.worker.comm, method.worker.partition.full_halo)
        self._method, self._traced = method, traced
        self.stats = Counter[str]()  # what is sent, as the method's metrics
        self.seen: dict[Channel, tuple[Tensor, int]] = {}  # of what was sent D r^2 / 6, float64 [n], and D

    def move(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], **what: Any) -> Tensor:
        """See `SyncExchange`."""
        comm, method, width, out = self.comm, self._method, rows.shape[1], what.pop("out", None)
        channel = layer, direction = what["layer"], what["direction"]
        out = rows.new_empty(sum(recv_counts), width) if out is None else out
        sent, received = method.coded(channel)
        if self._traced:
            with comm.clock.phase("compress"):
                low, high = rows.aminmax(dim=1)
                # Rows that are not finite end the training, which sees it behind the step.
                self.seen[channel] = ((high - low).double().square() * (width / 6)).nan_to_num(0, 0), width
                self.stats["row_groups"] += sum(min(method.groups, count) for count in send_counts)
        for k, (name, codec) in enumerate(method.codecs.items()):
            with comm.clock.phase("compress"):
                packed = codec.encode(rows.index_select(0, sent.at[k]))
            packed = comm.exchange_rows(packed, sent.counts[k], received.counts[k], exact=True, **what)
            with comm.clock.phase("compress"):
                out[received.at[k]] = codec.decode(packed, out.new_empty(len(packed), width))
            self.stats[f"{name}_{direction}{layer}"] += len(sent.at[k])
        return out


class AdaQP(FullGraphMethod[AdaQPOptions]):
    """Full-graph training on messages of 2, 4 or 8 bits, assigned row by row (AdaQP, Wan et al., MLSys 2023).

    Rows and gradients are packed by the codecs int2, int4 and int8 (see `Codec`), so that each arrives right in the
    mean. A message of D values with range r and b bits adds the variance w D r^2 / (6 (2^b - 1)^2); w sums A_ij^2 over
    the receiver's nodes i that read it, and is 1 of a gradient. After epoch 0, which sends 8 bits, and after each
    `period`-th epoch the bits of each layer's messages, forward and backward, are those that minimise

        weight * variance / (that with 2 bits) + (1 - weight) * time / (that with 8 bits),

    a linear program that HiGHS solves: the time is that of the slowest of the hosts' links, all equally fast, in either
    direction; without a network of the suite's a rank is a host. A rank's rows are divided by receiver and variance
    into `groups`, whose shares of each width the program chooses; in a group rows of larger variance have more bits.
    Left out is what else AdaQP has: inner nodes are not computed while the exchange goes on.

    Bytes: of each row ceil(D b / 8) + 8. An assignment takes, as control and of each exchange, 1 for each row, 8 a
    pair of ranks and 24 (P - 1) for each group.
    """

    name = "adaqp"
    colour = "#999933"
    Options = AdaQPOptions
    space: ClassVar[dict[str, Any]] = {"weight": [0.2, 0.5, 0.8]}
    metrics = (
        *(Metric.of_method(f"{n}_{way}*", f"rows of a layer sent as {n}, {way}") for n, way in product(CODECS, WAYS)),
        Metric.of_method("row_groups", "groups of rows that bits were assigned to"),
    )

    def __init__(self, worker: Worker, options: AdaQPOptions) -> None:
        super().__init__(worker, options)
        halo, self.codecs = worker.partition.full_halo, {name: Codec(name) for name in CODECS}
        self.groups = max(1, options.groups // max(1, worker.world - 1))  # of each peer's rows
        sent, received = halo.send_counts, halo.recv_counts
        self._counts = {"forward": (sent, received), "backward": (received, sent)}
        self._coded: dict[Channel, tuple[Coded, Coded]] = {}
        self._weights: dict[str, Tensor | float] = {"forward": self._read_weights(), "backward": 1.0}

    def _read_weights(self) -> Tensor:
        """Return of each row that is sent the sum of A_ij^2 over the nodes i that read it; every rank must call."""
        part, model = self.worker.partition, self.worker.model
        (left, right, _), edges = part.full_block.scales(model.propagation), part.full_block.transposed
        squares = left.squeeze(1)[edges.indices].double().square()
        squares = squares if edges.values is None else squares * edges.values.square()
        read = sums_of_rows(edges.indptr, squares)[part.num_inner :]
        read = read if right is None else read * right[part.num_inner :].squeeze(1).square()
        return self.worker.comm.exchange_rows(read, *self._counts["backward"], purpose="control")

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step; behind it, bits are assigned if it is time."""
        exchange = AdaptiveExchange(self, traced=epoch % self.options.period == 0)
        yield self.step_on(self.worker.partition.full_block, exchange, stats=exchange.stats)
        with self.worker.comm.clock.phase("compress"):
            for channel, (variances, width) in exchange.seen.items():
                self._assign(channel, (variances * self._weights[channel[1]]).cpu().numpy(), width)

    def coded(self, channel: Channel) -> tuple[Coded, Coded]:
        """Return the codecs of the rows that are sent and received: int8 before there is an assignment."""
        if channel not in self._coded:
            most = torch.full((1,), len(CODECS) - 1, dtype=torch.uint8, device=self.worker.device)
            sent, received = (Coded.of(most.repeat(sum(counts)), counts) for counts in self._counts[channel[1]])
            self._coded[channel] = sent, received
        return self._coded[channel]

    def _assign(self, channel: Channel, variances: NDArray[np.float64], width: int) -> None:
        """Choose the codecs of a channel's rows by these variances, of 1 level; every rank must call."""
        comm, (send_counts, recv_counts) = self.worker.comm, self._counts[channel[1]]
        peer = np.repeat(np.arange(comm.world), send_counts)
        divided = np.split(np.lexsort((-variances, peer)), np.cumsum(send_counts)[:-1])
        groups = [group for rows in divided if rows.size for group in np.array_split(rows, min(self.groups, rows.size))]
        table = np.array([(peer[group[0]], group.size, variances[group].sum()) for group in groups]).reshape(-1, 3)
        own = upload(torch.from_numpy(table), comm.device)
        found = comm.exchange_counts([len(own)] * comm.world)
        of_all = comm.exchange_rows(own.repeat(comm.world, 1), [len(own)] * comm.world, found, purpose="control")
        receiver, sizes, sums = of_all.cpu().numpy().T
        sender = np.repeat(np.arange(comm.world), found)
        per_host = (self.worker.job.config.network or {}).get("ranks_per_host", 1)
        hosts = np.stack([sender, receiver.astype(np.int64)]) // (per_host if per_host < comm.world else 1)
        shares = best_shares(hosts, sizes, sums, [row_bytes(n, width, 4) for n in CODECS], self.options.weight)
        codes = np.empty(len(variances), np.uint8)
        for group, share in zip(groups, shares[sender == comm.rank], strict=True):
            codes[group] = codes_of(group.size, share)
        sent = upload(torch.from_numpy(codes), comm.device)
        received = comm.exchange_rows(sent, send_counts, recv_counts, purpose="control")
        self._coded[channel] = Coded.of(sent, send_counts), Coded.of(received, recv_counts)

    def state(self) -> dict[str, Any]:
        """See `Method`: the codecs."""
        return {"coded": [[*channel, *(side.codes for side in sides)] for channel, sides in self._coded.items()]}

    def restore(self, state: dict[str, Any], done: int) -> None:
        """See `Method`."""
        for layer, direction, *codes in state["coded"]:
            sent, received = map(Coded.of, (each.to(self.worker.device) for each in codes), self._counts[direction])
            self._coded[layer, direction] = sent, received

    @classmethod
    def memory(cls, options: AdaQPOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.full_graph`: as of int8, of which the first epoch's rows are."""
        return case.full_graph(**options.for_memory | {"codec": "int8"})

    @classmethod
    def expected_stats(cls, options: AdaQPOptions, case: BytesCase) -> dict[str, float]:
        """Return what Reddit's twin came to: a share `weight` of the rows as int4, the others as int2."""
        shares = {"int2": 1 - options.weight, "int4": options.weight}
        ways = product(shares.items(), WAYS, range(case.model.depth))
        return {f"{name}_{way}{layer}": share * case.boundary for (name, share), way, layer in ways}

    @classmethod
    def bytes_per_epoch(cls, options: AdaQPOptions, case: BytesCase) -> Bytes:
        """Return the bytes of the rows of each codec and, in an epoch that ends with an assignment, its own."""
        sent, rows, exchanges = Counter[str](feature=0, embedding=0, gradient=0), 0, 0
        for block, values, learnt in case.model.exchanges(options.precompute, options.transform_before_exchange):
            for direction in WAYS[: 1 + learnt]:
                purpose = "gradient" if direction == "backward" else "embedding" if block else "feature"
                counts = {name: case.count(f"{name}_{direction}{block}") for name in CODECS}
                sent[purpose] += sum(count * row_bytes(name, values, 4) for name, count in counts.items())
                rows, exchanges = rows + sum(counts.values()), exchanges + 1
        groups = 24 * (case.parts - 1) * case.count("row_groups")
        assigned = rows + groups + 8 * case.pairs * exchanges if case.epoch % options.period == 0 else 0
        return {**sent, "control": assigned}


def codes_of(size: int, share: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the codecs of a group's rows, of which that of largest variance is the first: uint8 [size]."""
    ends = np.rint(size * share[::-1].cumsum()).clip(0, size).astype(np.int64)
    ends[-1] = size
    return np.repeat(np.arange(len(CODECS), dtype=np.uint8)[::-1], np.diff(ends, prepend=0))


def best_shares(
    hosts: NDArray[np.int64], sizes: NDArray[np.float64], variances: NDArray[np.float64],
    row_sizes: Sequence[int], weight: float,
) -> NDArray[np.float64]:  # fmt: skip
    """Return the share of each group's rows that each codec packs, float64 [G, 3]; see `AdaQP`.

    `hosts` int64 [2, G] send and receive a group, of `sizes` [G] rows; `variances` [G] are w D r^2 / 6, summed over its
    rows; `row_sizes` are the bytes of a row by codec.
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, hstack, kron

    groups, (sender, receiver) = sizes.size, hosts
    cost = variances[:, None] / np.square(LEVELS)
    # A link for each host and direction, and the rows of the groups that pass it.
    crossing = sizes * (sender != receiver)
    passing = [crossing * (end == host) for end in hosts for host in range(hosts.max(initial=0) + 1)]
    loads, longest = np.kron(passing, row_sizes), np.sum(passing, 1).max() * row_sizes[-1]
    found = linprog(
        np.append(weight * cost / max(cost[:, 0].sum(), np.finfo(float).tiny), 1 - weight),
        A_ub=np.c_[loads / max(longest, 1), np.full(len(loads), -1.0)],
        b_ub=np.zeros(len(loads)),
        A_eq=hstack([kron(eye_array(groups), np.ones((1, len(row_sizes)))), np.zeros((groups, 1))]),
        b_eq=np.ones(groups),
    )
    return np.asarray(found.x[:-1]).reshape(groups, len(row_sizes))
