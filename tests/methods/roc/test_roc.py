"""ROC: full-graph training bit for bit, and swaps that are counted by hand."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.full import Full
from harness_methods.roc import ROC
from support.training import run_to_the_end

from harness.check.graphs import OnDisk, on_disk, random_graph
from harness.check.training import Case, RankOutcome, run_ranks, train
from harness.models.gnn import GNN
from harness.models.spec import ModelSpec
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.report import TrialError
from harness.runtime.spec import TrainSpec

NODES, FEATURES, HIDDEN, CLASSES, ITEM = 60, 7, 8, 64, 4
MIB = 1 << 20
MODEL = ModelSpec(name="sage", layers=3, hidden=HIDDEN, dropout=0)
EPOCHS = 4
SPEC = TrainSpec(epochs=EPOCHS, threads=1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    """One rank, which learns from every node: the loss has more in use at once than any layer."""
    every, none = np.ones(NODES, bool), np.zeros(NODES, bool)
    labels = np.random.default_rng(0).integers(0, CLASSES, NODES)
    graph = replace(
        random_graph(41, NODES, features=FEATURES),
        labels=labels, num_classes=CLASSES, train_mask=every, val_mask=none, test_mask=none,
    )  # fmt: skip
    return on_disk(graph, np.zeros(NODES, int), 1, False, tmp_path_factory.mktemp("alone"))


def run(data: OnDisk, budget: int | None = None, model: ModelSpec = MODEL, **options: Any) -> RankOutcome:
    """Train one rank under a budget in bytes."""
    limit = None if budget is None else budget / MIB
    return train(0, 1, [Case(data, "roc", {"budget_mib": limit, **options}, model, SPEC)])[0]


@pytest.fixture(scope="module")
def least(alone: OnDisk) -> int:
    """The smallest budget under which a step runs, in bytes."""
    budget = 1
    for _ in range(100):
        try:
            run(alone, budget)
            return budget
        except TrialError as error:
            budget = max(budget + 1, int(re.findall(r"\((\d+) bytes\)", str(error))[0]))
    pytest.fail("no budget is enough")


def swapped(outcome: RankOutcome, epoch: int) -> tuple[int, int]:
    """Bytes to the device and away from it in an epoch."""
    row = outcome.rows[epoch]
    moved = row["stats"]["swap_in_bytes"], row["stats"]["swap_out_bytes"]
    assert row["bytes_swap"] == sum(moved)
    return moved


CASES = {
    "sage": (ModelSpec(name="sage", layers=3, hidden=8, dropout=0.5, norm="layer"), {}, 8.5),
    "gcn": (ModelSpec(name="gcn", layers=4, hidden=8, linear_layers=1, residual=True), {}, 9),
    "gat": (ModelSpec(name="gat", layers=3, hidden=8, heads=2, norm="layer"), {}, 11),
    "mixhop": (ModelSpec(name="mixhop", layers=2, hidden=9, norm="layer"), {}, 10.5),
    "precompute": (
        ModelSpec(name="sage", layers=2, hidden=8),
        {"precompute": True, "transform_before_exchange": True},
        5,
    ),
}


def test_losses_and_weights_are_those_of_full_bit_for_bit(tmp_path: Path) -> None:
    parts = np.random.default_rng(3).integers(0, 2, NODES)
    data = on_disk(random_graph(31), parts, 2, False, tmp_path)
    cases = [
        Case(data, method, options | limit, model, SPEC)
        for model, options, kib in CASES.values()
        for method, limit in (
            ("full", {}),
            ("roc", {}),
            ("roc", {"budget_mib": kib / 1024}),
            ("roc", {"budget_mib": 1.2 * kib / 1024}),
        )
    ]
    outcomes = run_ranks(train, 2, cases)[0]
    for start in range(0, len(cases), 4):
        full, *swapping = outcomes[start : start + 4]
        for found in swapping:
            assert [row["loss"] for row in found.rows] == [row["loss"] for row in full.rows]
            assert all(np.array_equal(found.after[name], full.after[name]) for name in full.after)
            assert all(swapped(found, epoch) == swapped(found, 1) for epoch in range(2, EPOCHS))
            for purpose in ("feature", "embedding", "gradient", "model"):
                assert found.rows[1][f"bytes_{purpose}"] == full.rows[1][f"bytes_{purpose}"]
        assert swapped(swapping[1], 1) > swapped(swapping[0], 1)  # or the budget made nothing move


@pytest.mark.parametrize(("precompute", "matrices"), [(False, 1), (True, 2)])
def test_without_a_limit_only_the_input_features_come_in_every_epoch(
    alone: OnDisk, precompute: bool, matrices: int
) -> None:
    found = run(alone, precompute=precompute)
    want = matrices * NODES * FEATURES * ITEM
    assert [swapped(found, epoch) for epoch in range(EPOCHS)] == [(want, 0)] * EPOCHS


def test_under_the_least_budget_every_saved_matrix_leaves_once_and_comes_back_once(alone: OnDisk, least: int) -> None:
    """Of each layer the backward pass reads H (for W_self and ReLU) and A H (for W), of the loss its own.

    A H comes before W since no layer is narrower than its input. When the loss has its four matrices in use
    (logits, their log-softmax and both gradients), everything else has left.
    """
    found = run(alone, least)
    saved = {0: [FEATURES, HIDDEN], 1: [HIDDEN, HIDDEN], 2: [HIDDEN]}  # A H, and the ReLU's output; by layer
    away = {layer: NODES * ITEM * sum(widths) for layer, widths in saved.items()}
    features = NODES * FEATURES * ITEM  # the host has them: they come twice and never leave
    want = (2 * features + sum(away.values()), sum(away.values()))
    assert [swapped(found, epoch) for epoch in range(1, EPOCHS)] == [want] * (EPOCHS - 1)
    out: dict[int, int] = defaultdict(int)
    for row in found.traffic:
        if row["purpose"] == "swap":
            assert (row["peer"], row["scope"]) == (-1, "epoch")
            out[row["layer"]] += row["sent_bytes"]
    assert {layer: size for layer, size in out.items() if size} == {k: EPOCHS * v for k, v in away.items()}


def test_less_memory_never_moves_less(alone: OnDisk, least: int) -> None:
    peak = run(alone).rows[1]["stats"]["arena_peak_bytes"]
    moved = []
    largest = NODES * CLASSES * ITEM
    for budget in np.linspace(least, peak, 9).astype(int):
        found = run(alone, int(budget))
        assert found.rows[1]["stats"]["arena_peak_bytes"] <= budget + largest
        moved.append(swapped(found, 1))
    for smaller, larger in itertools.pairwise(moved):
        assert smaller[0] >= larger[0]
        assert smaller[1] >= larger[1]
    assert moved[0] > moved[-1] == (NODES * FEATURES * ITEM, 0)


def test_a_budget_that_one_layer_exceeds_ends_as_oom_and_the_record_says_what_a_device_is(alone: OnDisk) -> None:
    small = run_to_the_end(0, 1, Case(alone, "roc", {"budget_mib": 1 / 1024}, MODEL, SPEC))
    assert small["status"] == "oom"
    assert small["reason"] == (
        "layer 0, forward pass: what is in use at once needs at least 0.001602 MiB (1680 bytes) "
        "on the device, the budget is 0.0009766 MiB"
    )
    assert "emulated" in " ".join(small["remarks"])


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize(("order", "layers", "tail"), [(1, 2, 0), (2, 2, 0), (2, 1, 0), (3, 1, 1)])
def test_memory_of_mixed_powers_is_what_the_arena_sees(
    order: int, layers: int, tail: int, norm: str, tmp_path: Path
) -> None:
    """To a tenth of what is live at once, the input features included."""
    data = on_disk(random_graph(51, features=64), np.zeros(NODES, int), 1, False, tmp_path)
    model = ModelSpec(
        name="mixhop", order=order, layers=layers, linear_layers=tail, hidden=96, norm=norm, dropout=0
    )  # fmt: skip
    trainer = Case(data, "roc", {}, model, SPEC).trainer(0, 1)
    peak = trainer.train_epoch(0)["stats"]["arena_peak_bytes"]
    assert trainer.method.memory_components()["rows on the device"] == pytest.approx(peak, rel=0.1)


def test_memory_is_that_of_full_and_the_host_s_features() -> None:
    model = GNN(MODEL, FEATURES, CLASSES, seed=0, dtype=torch.float32)
    part = PartSize(inner=100, boundary=20, edges=1000, cut=50)
    case = MemoryCase(part, part, 40, 200, 2000, model, parts=2)
    features, limit = 100 * FEATURES * ITEM, 20_000

    def size(case: MemoryCase, **options: float) -> int:
        return sum(ROC.memory(ROC.Options(**options), case).values())

    full = sum(Full.memory(Full.Options(), case).values())
    assert size(case) == full + features == size(case, budget_mib=1000)
    assert size(case, budget_mib=limit / MIB) == full + features
    cuda = replace(case, cuda=True, evaluated=None)
    whole = Full.memory(Full.Options(), cuda)
    rows = sum(size for name, size in whole.items() if name.startswith(("layers", "input")))
    assert size(cuda, budget_mib=limit / MIB) == sum(whole.values()) - rows + limit
    # An evaluation is not under the budget.
    evaluated = replace(cuda, evaluated=part)
    assert size(cuda, budget_mib=limit / MIB) < size(evaluated, budget_mib=limit / MIB) <= size(evaluated)
