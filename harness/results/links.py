"""Networks to project onto: a plain rate, or one of a few well-known links by name."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import UserError, nearest
from harness.suite.schema import parse_rate


@dataclass(frozen=True)
class Preset:
    """A link that moves bytes without the kernel's sockets: bits a second each way, and who says so."""

    bits_s: float
    source: str


PRESETS = {
    "nvlink": Preset(8 * 450e9, "NVLink 4: 900 GB/s a GPU, both ways together (NVIDIA, H100 data sheet)"),
    "pcie4": Preset(8 * 31.5e9, "PCIe 4.0 x16: 16 GT/s a lane, 128b/130b (PCI-SIG)"),
    "pcie5": Preset(8 * 63e9, "PCIe 5.0 x16: 32 GT/s a lane, 128b/130b (PCI-SIG)"),
    "hdr": Preset(200e9, "InfiniBand HDR, 4 lanes (IBTA roadmap)"),
    "ndr": Preset(400e9, "InfiniBand NDR, 4 lanes (IBTA roadmap)"),
}


@dataclass(frozen=True)
class NamedLink:
    """A network a user asked for; `sockets` as for `harness.results.projection.project`."""

    name: str
    bits_s: float
    sockets: bool
    source: str = ""


def parse_link(text: str, key: str) -> NamedLink:
    """Return what `text` names: a preset, or a rate such as "10gbit"; UserError naming `key` otherwise."""
    if preset := PRESETS.get(text):
        return NamedLink(text, preset.bits_s, sockets=False, source=preset.source)
    try:
        bits_s = parse_rate(text)
    except ValueError:
        fix = f"{nearest(text, PRESETS)}; or a rate such as 10gbit"
        raise UserError(f"unknown network '{text}'", key=key, fix=fix) from None
    if not bits_s:
        raise UserError(f"'{text}' is no rate: it must be more than 0", key=key)
    return NamedLink(text, bits_s, sockets=True)
