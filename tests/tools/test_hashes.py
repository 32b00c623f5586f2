"""hashes.txt: the pins of constraints.txt, each with hashes, and what is read from an index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import hashes

ROOT = Path(__file__).resolve().parents[2]


def test_each_pin_has_hashes() -> None:
    pins = hashes.pins((ROOT / "constraints.txt").read_text())
    lines = [line for line in (ROOT / "hashes.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line.partition(" --hash")[0] for line in lines] == [str(pin) for pin in pins]
    for pin, line in zip(pins, lines, strict=True):
        found = re.findall(r" --hash=sha256:([0-9a-f]{64})(?= |$)", line)
        assert bool(found) == (pin.name != "torch"), line
        assert len(set(found)) == len(found)


FILES = {
    "tool-1.2-py3-none-any.whl": True,
    "tool-1.2-cp311-cp311-manylinux_2_28_x86_64.whl": True,
    "tool-1.2-cp39-abi3-macosx_11_0_arm64.whl": True,
    "tool-1.2.tar.gz": True,
    "tool-1.2-cp310-cp310-manylinux_2_28_x86_64.whl": False,
    "tool-1.2.1-py3-none-any.whl": False,
    "tool-1.2-1-extra-none-any.whl": False,
    "tool-1.2.exe": False,
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_version_and_its_pythons_count(name: str) -> None:
    assert hashes.fits(name, "1.2") == FILES[name]


def test_a_pin_without_files_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [{"filename": name, "hashes": {"sha256": name}} for name in FILES]
    monkeypatch.setattr(hashes, "published", lambda name: files if name == "tool" else [])
    (one, other) = hashes.pins("# pins\ntool==1.2; python_version < '3.13'\nother==3\n")
    assert hashes.line_of(one).split(" --hash=sha256:")[1:] == sorted(name for name, kept in FILES.items() if kept)
    with pytest.raises(ValueError, match="other==3: no file"):
        hashes.line_of(other)
