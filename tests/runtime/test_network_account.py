"""What a rank's kernel says that it sent is held against what was counted where that says anything."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.runtime import audit
from harness.runtime.audit import FILE_BYTES, NetworkAccount
from harness.runtime.comm import Traffic

SENT = 10_000_000


class Kernel:
    """A rank's files in /proc, and what its TCP socket says."""

    def __init__(
        self, proc: Path, monkeypatch: pytest.MonkeyPatch, *, world: int, gloo: bool, device: str, acknowledged: int = 9
    ) -> None:
        self.proc, self.traffic, self.acknowledged, self.interface = proc, Traffic(), acknowledged, 0
        (proc / "fd").mkdir()
        (proc / "fd/3").symlink_to("socket:[1]")
        (proc / "maps").write_text("")
        self.wrote = 0
        counters = lambda **_: {"eth": SimpleNamespace(bytes_sent=self.interface, bytes_recv=0)}  # noqa: E731
        monkeypatch.setattr(audit, "_acknowledged", lambda fd: self.acknowledged)
        monkeypatch.setattr(audit.psutil, "net_io_counters", counters)
        comm = SimpleNamespace(
            rank=0, world=world, by_sockets=gloo, device=torch.device(device), traffic=self.traffic,
            all_gather=lambda own: [own] * world,
        )  # fmt: skip
        self.wire = NetworkAccount(comm, "eth", proc)  # type: ignore[arg-type]
        self.write(0)
        self.wire.begins()

    def write(self, count: int) -> None:
        self.wrote += count
        (self.proc / "io").write_text(f"rchar: 5\nwchar: {self.wrote}\n")

    def opens(self) -> None:
        os.symlink("socket:[2]", self.proc / "fd/4")

    def counts(self, count: int) -> None:
        with self.traffic.during("epoch"):
            self.traffic.count("embedding", 0, "forward", 1, count, count)

    def flags(self, *, epochs: int = 1, rehearsed: bool = True) -> list[str]:
        found: list[str] = []
        self.told = self.wire.ends(lambda key, text: found.append(text), epochs=epochs, rehearsed=rehearsed)
        return found


@pytest.mark.parametrize(
    ("world", "gloo", "device", "rehearsed", "flagged"),
    [
        (2, True, "cpu", True, True),
        (1, False, "cpu", True, True),
        (2, True, "cpu", False, True),
        (1, False, "meta", True, True),
        (1, False, "meta", False, False),  # a GPU's driver maps its files at first use
        (2, False, "meta", True, False),  # nccl connects when it sends first
    ],
)
def test_what_is_opened_is_flagged_where_nothing_else_opens_it(
    world: int, gloo: bool, device: str, rehearsed: bool, flagged: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch, "tensor", lambda values, device, make=torch.tensor: make(values))
    kernel = Kernel(tmp_path, monkeypatch, world=world, gloo=gloo, device=device)
    kernel.opens()
    assert kernel.flags(rehearsed=rehearsed) == (["opened while it trained: a socket"] if flagged else [])


@pytest.mark.parametrize(
    ("written", "epochs", "rehearsed", "flagged"),
    [
        (FILE_BYTES + 1, 0, True, True),
        (FILE_BYTES + 1, 0, False, False),  # kernels are compiled
        (130 * 10_000, 10_000, True, False),  # progress is told
        (FILE_BYTES + 257 * 10_000, 10_000, True, True),
    ],
)
def test_files_may_have_logs_and_kernels(
    written: int, epochs: int, rehearsed: bool, flagged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path, monkeypatch, world=1, gloo=False, device="cpu")
    kernel.write(written)
    assert kernel.flags(epochs=epochs, rehearsed=rehearsed) == (
        [f"{written:,} bytes were written to files"] if flagged else []
    )


@pytest.mark.parametrize("gloo", [True, False])
def test_an_interface_is_held_against_what_gloo_sends(
    gloo: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path, monkeypatch, world=2, gloo=gloo, device="cpu")
    kernel.counts(SENT)
    kernel.acknowledged += SENT
    kernel.interface += 2 * SENT
    assert kernel.flags() == (["interfaces sent 40,000,000 bytes, 20,000,000 were counted"] if gloo else [])


def test_a_kernel_that_tells_0_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, monkeypatch, world=2, gloo=True, device="cpu", acknowledged=0)
    kernel.counts(SENT)
    kernel.write(SENT)
    kernel.interface = int(1.05 * SENT)
    assert kernel.flags() == []
    assert (kernel.told["socket_bytes"], kernel.told["file_bytes"]) == (None, None)


def test_a_kernel_may_not_tell_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, monkeypatch, world=1, gloo=False, device="cpu")
    (tmp_path / "io").write_text("rchar: 5\n")
    assert kernel.flags() == []
    assert kernel.told["file_bytes"] is None
