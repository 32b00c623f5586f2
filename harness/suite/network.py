"""What a suite says of networks: rates, latencies, ranks a host."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from harness.spec import Spec

UNLIMITED = "unlimited"
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.ASCII)


def parse_rate(text: str) -> float:
    """Return the bits a second of "100mbit", "2.5gbit" (decimal units, as tc writes them) or "unlimited".

    ValueError for anything else.
    """
    if text == UNLIMITED:
        return math.inf
    return _parse(text, _BITS, "write a rate as 100mbit, 1gbit or unlimited")


def parse_latency(text: str) -> float:
    """Return the seconds of "50us", "0.5ms" or "0s"; ValueError for anything else."""
    if text == "0":
        return 0.0
    return _parse(text, _SECONDS, "write a latency as 50us or 0.5ms")


def rate_text(bits_s: float) -> str:
    """Write a rate in the largest unit that leaves a number of at least 1: "1gbit"."""
    return UNLIMITED if math.isinf(bits_s) else _text(bits_s, _BITS)


def latency_text(seconds: float) -> str:
    """Write a latency in the largest unit that leaves a number of at least 1: "500us"."""
    return "0" if seconds == 0 else _text(seconds, _SECONDS)


def _parse(text: str, units: dict[str, Any], fix: str) -> float:
    found = _NUMBER.fullmatch(str(text).strip().lower())
    if found is None or found[2] not in units:
        raise ValueError(f"'{text}' is not understood: {fix}")
    return float(found[1]) * float(units[found[2]])


def _text(value: float, units: dict[str, Any]) -> str:
    fitting = [unit for unit, size in units.items() if value >= size * (1 - 1e-9)]
    unit = fitting[-1] if fitting else next(iter(units))
    return f"{float(f'{value / units[unit]:.6g}'):g}{unit}"


def _rate(value: Any) -> str:
    text = rate_text(parse_rate(str(value)))
    if text == "0bit":
        raise ValueError("a rate must be more than 0")
    return text


class NetworkSpec(Spec):
    """A network that ranks are put on: a link of one rate and latency for each host, all to one switch."""

    rate: Annotated[str, BeforeValidator(_rate)] = Field(
        UNLIMITED, description="bits a second of a host's link, each direction, e.g. 1gbit; or unlimited"
    )
    latency: Annotated[str, BeforeValidator(lambda written: latency_text(parse_latency(str(written))))] = Field(
        "0", description="delay added to each packet on its way between hosts, e.g. 50us"
    )
    ranks_per_host: int = Field(1, ge=1, description="ranks that share a host and its link")

    @property
    def bits_s(self) -> float:
        """Bits a second of a host's link in each direction; infinite if unlimited."""
        return parse_rate(self.rate)

    @property
    def latency_s(self) -> float:
        """Seconds added to each packet."""
        return parse_latency(self.latency)

    @property
    def label(self) -> str:
        """The network in a few words, e.g. "1gbit+50us, 2 ranks a host"."""
        delay = "" if self.latency == "0" else f"+{self.latency}"
        shared = "" if self.ranks_per_host == 1 else f", {self.ranks_per_host} ranks a host"
        return f"{self.rate}{delay}{shared}"
