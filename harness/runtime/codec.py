"""Codecs: how rows that training exchanges are packed into fewer bytes, and unpacked where they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.kernels import bits_at, next_u64, stream, streams

if TYPE_CHECKING:
    from torch import Tensor

CodecName = Literal["none", "fp16", "bf16", "int8", "int4", "int2"]
BITS: dict[CodecName, int] = {"fp16": 16, "bf16": 16, "int8": 8, "int4": 4, "int2": 2}
HEADERS: dict[CodecName, int] = {"fp16": 4, "bf16": 0}  # bytes sent with a row
INTEGERS_HEADER = 8


def row_bytes(codec: CodecName, values: int, itemsize: int) -> int:
    """Return the bytes that a row of so many values, of `itemsize` bytes each, is sent as."""
    if codec == "none":
        return values * itemsize
    return HEADERS.get(codec, INTEGERS_HEADER) + -(-values * BITS[codec] // 8)


class Codec:
    """Packs rows of float values into bytes.

    - int8, int4, int2: b bits a value, and of each row its least value z and the distance s of two codes as float32:
      code = floor((x - z) / s + u), u uniform in [0, 1), s = (max - z) / (2^b - 1), and z + s code arrives. So each
      value arrives in the mean (stochastic rounding of messages: AdaQP, Wan et al., MLSys 2023), and the variance is
      at most s^2 / 4.
    - bf16: rounded to the nearest, not unbiased; fp16: the same of x / max |x|, which is sent as float32, so that a
      row's small values do not vanish.

    A call's random numbers depend on a seed that torch's generator draws, which a checkpoint keeps, and on the value's
    place: they are the same on the host and on a GPU. A row that is not finite arrives as one that is not.

    Args:
        name: one of `CodecName`, not "none".
        feedback: what a row lost by its rounding is added to the same row the next time (error feedback; Seide et al.,
            Interspeech 2014). The rows of a channel have to be the same each time.
    """

    def __init__(self, name: CodecName, *, feedback: bool = False) -> None:
        self.name, self._bits, self._feedback = name, BITS[name], feedback
        self._lost: dict[tuple[Any, ...], Tensor] = {}

    def encode(self, rows: Tensor, *channel: Any) -> Tensor:
        """Pack rows [n, width], which go over a channel; return uint8 [n, `row_bytes`]."""
        if not self._feedback:
            return self._pack(rows)
        wanted = rows + self._lost[channel] if channel in self._lost else rows
        packed = self._pack(wanted)
        self._lost[channel] = wanted - self.decode(packed, torch.empty_like(rows))
        return packed

    def decode(self, packed: Tensor, out: Tensor) -> Tensor:
        """Unpack what `encode` returned, also of several senders, into `out` [n, width], and return it."""
        if self.name == "bf16":
            return out.copy_(_as(packed, torch.bfloat16))
        if self.name == "fp16":
            largest, values = _as(packed[:, :4], torch.float32), _as(packed[:, 4:], torch.float16)
            return torch.mul(values.to(out.dtype), largest.to(out.dtype), out=out)
        header, codes = _as(packed[:, :INTEGERS_HEADER], torch.float32), packed[:, INTEGERS_HEADER:]
        if out.device.type == "cpu":
            _unpack_codes(header.numpy(), codes.numpy(), self._bits, out.numpy())
            return out
        return self.unpack_on_device(header, codes, out)

    def _pack(self, rows: Tensor) -> Tensor:
        if self.name == "bf16":
            return rows.bfloat16().view(torch.uint8)
        rows = rows.float()
        if self.name == "fp16":
            largest = rows.abs().amax(1, keepdim=True)
            values = (rows / torch.where(largest > 0, largest, 1)).half()
            return torch.cat([largest.view(torch.uint8), values.view(torch.uint8)], 1)
        seed = int(torch.randint(2**63 - 1, ()))
        if rows.device.type == "cpu":
            header = torch.empty(len(rows), 2)
            size = row_bytes(self.name, rows.shape[1], rows.itemsize) - INTEGERS_HEADER
            codes = torch.empty(len(rows), size, dtype=torch.uint8)
            _pack_codes(rows.contiguous().numpy(), self._bits, seed, header.numpy(), codes.numpy())
        else:
            header, codes = self.pack_on_device(rows, seed)
        return torch.cat([header.view(torch.uint8), codes], 1)

    def pack_on_device(self, rows: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return the headers, float32 [n, 2], and packed codes, uint8, of float32 rows: those of the kernel."""
        most, per = 2**self._bits - 1, 8 // self._bits
        low, high = rows.aminmax(dim=1, keepdim=True)
        header = torch.cat([low, (high - low) / most], 1)
        factor = torch.where(high > low, most / (high - low), 0)
        places = torch.arange(1, rows.shape[1] // 2 + 2, device=rows.device)
        bits = bits_at(streams(seed, torch.arange(len(rows), device=rows.device))[:, None], places)
        halves = torch.stack([bits >> 40, bits >> 8], 2).flatten(1)[:, : rows.shape[1]] & (2**24 - 1)
        values = rows.sub(low).mul_(factor).add_(halves.float().mul_(2.0**-24)).clamp_(0, most)
        codes = values.nan_to_num_(0).to(torch.uint8)  # towards zero
        if per > 1:
            codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % per)).unflatten(1, (-1, per))
            codes = (codes << self._shifts(codes)).sum(2, dtype=torch.uint8)
        return header, codes

    def unpack_on_device(self, header: Tensor, codes: Tensor, out: Tensor) -> Tensor:
        """Return `out`, filled with the values of headers and packed codes."""
        if self._bits < 8:
            codes = (codes[:, :, None] >> self._shifts(codes)) & (2**self._bits - 1)
            codes = codes.flatten(1)[:, : out.shape[1]]
        low, step = header.to(out.dtype).split(1, 1)
        return torch.add(torch.mul(codes.to(out.dtype), step), low, out=out)

    def _shifts(self, like: Tensor) -> Tensor:
        return torch.arange(0, 8, self._bits, dtype=torch.uint8, device=like.device)

    def state(self) -> list[Any]:
        """Return what it carries from epoch to epoch, for a checkpoint."""
        return [[*channel, lost] for channel, lost in self._lost.items()]

    def restore(self, state: list[Any], device: torch.device) -> None:
        """Go on from the `state` of another process."""
        self._lost = {tuple(channel): lost.to(device) for *channel, lost in state}


def _as(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values that bytes [n, ...] are, also where n is 0."""
    return packed.reshape(-1).view(dtype).view(len(packed), packed.shape[1] // dtype.itemsize)


@numba.njit(cache=True, nogil=True)
def _pack_codes(rows, bits, seed, header, codes):  # type: ignore[no-untyped-def]
    """Fill `header` and `codes` of rows [n, width], float32; see `Codec`."""
    most, per, width = np.float32((1 << bits) - 1), 8 // bits, rows.shape[1]
    ups = np.empty(width + 1, np.float32)
    for i in range(rows.shape[0]):
        row = rows[i]
        low = high = row[0]
        finite = True
        for value in row:
            finite &= abs(value) < np.inf
            low = value if value < low else low
            high = value if value > high else high
        if not finite:
            low = np.float32(np.nan)
        header[i, 0], header[i, 1] = low, (high - low) / most
        factor = most / (high - low) if high > low else np.float32(0)
        state = stream(seed, i)
        for j in range(0, width, 2):
            state, drawn = next_u64(state)
            ups[j] = np.float32(np.int32(drawn >> np.uint64(40))) * np.float32(2.0**-24)
            ups[j + 1] = np.float32(np.int32((drawn >> np.uint64(8)) & np.uint64(0xFFFFFF))) * np.float32(2.0**-24)
        for j in range(width):
            ups[j] += (row[j] - low) * factor
        for k in range(codes.shape[1]):
            word = np.int32(0)
            for t in range(min(per, width - k * per)):
                value = ups[k * per + t]
                value = value if value < most else most
                word |= np.int32(value if value > 0 else np.float32(0)) << np.int32(bits * t)
            codes[i, k] = word


@numba.njit(cache=True, nogil=True)
def _unpack_codes(header, codes, bits, out):  # type: ignore[no-untyped-def]
    """Fill `out` [n, width] with the values of `header` and `codes`."""
    per, mask, width = 8 // bits, np.int32((1 << bits) - 1), out.shape[1]
    kind = out.dtype.type
    for i in range(out.shape[0]):
        low, step = kind(header[i, 0]), kind(header[i, 1])
        for k in range(codes.shape[1]):
            word = np.int32(codes[i, k])
            for t in range(min(per, width - k * per)):
                out[i, k * per + t] = kind(word & mask) * step + low
                word >>= np.int32(bits)
