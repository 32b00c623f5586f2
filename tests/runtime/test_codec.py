"""Codecs: what arrives is right in the mean, bytes are the closed form, training and checkpoints go on with it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.ranks import run_ranks
from support.tiers import tiered

from harness.check.claims import bytes_differences, lost_bytes, resume_check
from harness.check.graphs import TinyGraphs
from harness.check.runs import CheckRun, Subject, execute, find_all
from harness.check.training import train
from harness.errors import UserError
from harness.models.layer import ModelSpec
from harness.runtime.codec import BITS, Codec, row_bytes
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec

INTEGERS = ("int8", "int4", "int2")
WIDTHS = (1, 2, 3, 5, 8, 33)


def rows_of(width: int, seed: int = 0) -> torch.Tensor:
    """Return 20 rows, the first all zeros, the second all alike, each other one of another size."""
    rows = (
        torch.from_numpy(np.random.default_rng(seed).normal(size=(20, width))) * 10.0 ** torch.arange(-8, 12)[:, None]
    )
    rows[0], rows[1] = 0, 2.5
    return rows.float()


def arrived(codec: Codec, rows: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(rows), torch.empty_like(rows))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", INTEGERS)
def test_a_value_is_rounded_to_one_of_its_two_neighbours(name: Any, width: int) -> None:
    rows = rows_of(width)
    packed = Codec(name).encode(rows)
    assert packed.dtype == torch.uint8
    assert packed.shape == (20, row_bytes(name, width, 4))
    low, step = packed[:, :8].numpy().view(np.float32).T[:, :, None]  # as a reader without this code has them
    np.testing.assert_array_equal(low[:, 0], rows.numpy().min(1))
    codes = (arrived(Codec(name), rows).numpy() - low) / np.where(step > 0, step, 1)
    np.testing.assert_allclose(codes, codes.round(), atol=1e-3)
    assert codes.min() >= 0
    assert codes.max() <= 2 ** BITS[name] - 1 + 1e-3
    exact = (rows.numpy().astype(np.float64) - low) / np.where(step > 0, step, 1)
    assert (np.abs(codes.round() - exact) < 1 + 1e-3).all()


@pytest.mark.parametrize("name", INTEGERS)
def test_what_arrives_is_right_in_the_mean(name: Any) -> None:
    torch.manual_seed(1)
    codec, rows = Codec(name), rows_of(7)[2:]
    draws = torch.stack([arrived(codec, rows) for _ in range(3000)]).double()
    spread = draws.std(0)
    assert (spread > 0).float().mean() > 0.5  # but for a row's least and largest value
    some = spread > 0
    z = (draws.mean(0) - rows)[some] / (spread[some] / 3000**0.5)
    assert z.abs().max() < stats.norm.isf(0.5e-3 / z.numel())
    assert z.square().mean().item() == pytest.approx(1, abs=0.5)
    # To the nearest it would not be.
    low, high = rows.aminmax(dim=1, keepdim=True)
    step = (high - low) / (2 ** BITS[name] - 1)
    nearest = low + step * ((rows - low) / step).round()
    assert ((nearest - rows)[some] / (spread[some] / 3000**0.5)).abs().max() > 20


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", INTEGERS)
def test_a_device_packs_and_unpacks_as_the_kernel(name: Any, width: int) -> None:
    codec, rows = Codec(name), rows_of(width)
    torch.manual_seed(2)
    packed = codec.encode(rows)
    torch.manual_seed(2)
    header, codes = codec.pack_on_device(rows, int(torch.randint(2**63 - 1, ())))
    assert torch.equal(torch.cat([header.view(torch.uint8), codes], 1), packed)
    for dtype in (torch.float32, torch.float64):
        out = torch.empty(rows.shape, dtype=dtype)
        wanted = codec.decode(packed, torch.empty_like(out))
        assert torch.allclose(codec.unpack_on_device(header, codes, out), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("name", "error"), [("bf16", 2.0**-8), ("fp16", 2.0**-10)])
def test_halves_keep_the_largest_values_of_every_row(name: Any, error: float) -> None:
    rows = rows_of(9)
    largest = rows.abs().amax(1, keepdim=True)
    assert Codec(name).encode(rows).shape == (20, row_bytes(name, 9, 4))
    assert ((arrived(Codec(name), rows) - rows).abs() <= error * largest).all()


@pytest.mark.parametrize("name", BITS)
def test_no_row_and_rows_that_are_not_finite(name: Any) -> None:
    codec = Codec(name)
    assert arrived(codec, torch.empty(0, 5)).shape == (0, 5)
    rows = torch.ones(4, 5)
    rows[1, 3], rows[2, 0], rows[3, 4] = torch.nan, torch.inf, -torch.inf
    assert arrived(codec, rows).isfinite().all(1).tolist() == [True, False, False, False]


def test_with_feedback_what_was_lost_comes_later() -> None:
    torch.manual_seed(3)
    rows, sums = rows_of(6)[2:6], []
    step = (rows.amax(1) - rows.amin(1)) / 3
    for feedback in (False, True):
        codec = Codec("int2", feedback=feedback)
        total = sum(codec.decode(codec.encode(rows, "embedding", 1), torch.empty_like(rows)) for _ in range(400))
        sums.append(((total - 400 * rows).abs().amax(1) / step).max().item())
    assert sums[0] > 5  # as a random walk
    assert sums[1] < 2.5  # as the last rounding, of rows that are wider by what is fed back


SENDING: dict[str, dict[str, Any]] = {"full": {}, "bns-gcn": {"rate": 0.5}, "pipegcn": {}, "roc": {}}
MODEL = ModelSpec(layers=3, hidden=8, dropout=0)
WIDTH = {
    "fp16": lambda n: 4 + 2 * n,
    "bf16": lambda n: 2 * n,
    "int8": lambda n: 8 + n,
    "int2": lambda n: 8 + -(-n // 4),
}


@pytest.mark.parametrize("method", tiered(SENDING, ("full", "pipegcn")))
def test_training_sends_the_bytes_that_are_stated(method: str, tmp_path: Path) -> None:
    spec, options = TrainSpec(epochs=3, optimizer="sgd", lr=0.05, threads=1), SENDING[method]
    graphs, names = TinyGraphs(tmp_path), ("none", *WIDTH)
    tiny = graphs.get("transductive", 2)
    runs = [CheckRun(Subject(method), options | {"codec": c}, tiny, 2, "sage", MODEL, spec) for c in names]
    by_rank = run_ranks(train, 2, [run.case for run in runs])
    found = {name: [rank[k] for rank in by_rank] for k, name in enumerate(names)}
    for run, ranks in zip(runs, found.values(), strict=True):
        assert bytes_differences(METHODS.load(method), run, ranks) == []
        assert lost_bytes(run, ranks) == []

    def sent(name: str, purpose: str) -> float:
        return sum(rank.rows[-1][f"bytes_{purpose}"] for rank in found[name])

    def evaluated(name: str) -> int:
        return sum(row["sent_bytes"] for row in found[name][0].traffic if row["scope"] == "eval")

    widths = {"feature": tiny.graph.features.shape[1], "embedding": 8, "gradient": 8}
    losses = {name: [row["loss"] for row in ranks[0].rows] for name, ranks in found.items()}
    for name, width in WIDTH.items():
        for purpose, values in widths.items():
            assert sent(name, purpose) * 4 * values == sent("none", purpose) * width(values), (name, purpose)
        assert [sent(name, purpose) for purpose in ("model", "control")] == [
            sent("none", purpose) for purpose in ("model", "control")
        ]
        assert evaluated(name) == evaluated("none") > 0
        assert losses[name] != losses["none"]
        assert losses[name] == pytest.approx(losses["none"], rel=0.5 if name == "int2" else 0.05)
        for weight, value in found[name][0].after.items():  # replicas are equal
            np.testing.assert_array_equal(value, found[name][1].after[weight])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "pipegcn", "roc"])
def test_a_training_with_feedback_goes_on_with_the_same_bits(method: str, tmp_path: Path) -> None:
    options = [{"codec": "int4", "feedback": True}, {"codec": "int8"}]
    spec = TrainSpec(epochs=6, threads=1)
    check = resume_check(Subject(method), options, TinyGraphs(tmp_path), 2, spec)
    (finding,) = find_all([check], execute(check.runs, limit_s=100))
    assert finding.state == "ok", finding.problems


@pytest.mark.parametrize(
    ("method", "options", "what"),
    [
        ("cagnet", {"codec": "int8"}, "codec: cagnet's ranks hold copies"),
        ("full", {"feedback": True}, "feedback: without a codec"),
        ("psc-gcn", {"codec": "int8", "feedback": True}, "feedback: what is drawn or cached"),
    ],
)
def test_what_cannot_be_is_refused(method: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        METHODS.load(method).Options(**options)


def test_rows_that_are_drawn_anew_have_lost_nothing(tmp_path: Path) -> None:
    options = {"rate": 0.5, "codec": "int8", "feedback": True}
    tiny = TinyGraphs(tmp_path).get("transductive", 1)
    run = CheckRun(Subject("bns-gcn"), options, tiny, 1, "sage", MODEL, TrainSpec(epochs=2, threads=1))
    trainer = run.case.trainer(0, 1)
    block = trainer.worker.partition.full_block
    for _ in range(2):
        trainer.method.step_on(block, None)
    with pytest.raises(UserError, match="feedback: the method exchanges other rows"):
        trainer.method.step_on(copy.copy(block), None)
