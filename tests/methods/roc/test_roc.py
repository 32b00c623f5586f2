"""ROC: full-graph training bit for bit, and swaps that are counted by hand."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.full import Full
from harness_methods.roc import ROC
from harness_methods.roc.plan import Trace
from pydantic import ValidationError
from support.allocator import allocated
from support.ranks import run_ranks
from support.training import run_to_the_end

from harness.check.graphs import OnDisk, on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.run_config import TrainSpec
from harness.runtime.trainer import Trainer, loss_sum

NODES, FEATURES, HIDDEN, CLASSES, ITEM = 64, 7, 8, 64, 4  # nodes: no row of zeros in a gradient of weights
MIB = 1 << 20
MODEL = ModelSpec(name="sage", layers=3, hidden=HIDDEN, dropout=0)
EPOCHS = 4
SPEC = TrainSpec(epochs=EPOCHS, threads=1)
DOUBLE = TrainSpec(epochs=EPOCHS, threads=1, precision="float64")


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


def traced_of(data: OnDisk, model: ModelSpec = MODEL, spec: TrainSpec = SPEC, **options: Any) -> Trace:
    """Return the step of the method that one rank makes."""
    return method_of(Case(data, "roc", options, model, spec)).trace


def method_of(case: Case) -> ROC:
    found = case.trainer(0, 1).method
    assert isinstance(found, ROC)
    return found


@pytest.fixture(scope="module")
def least(alone: OnDisk) -> int:
    """The smallest budget under which a step runs, in bytes."""
    return traced_of(alone).least


def swapped(outcome: RankOutcome, epoch: int) -> tuple[int, int]:
    """Bytes to the device and away from it in an epoch."""
    row = outcome.rows[epoch]
    moved = row["stats"]["swap_in_bytes"], row["stats"]["swap_out_bytes"]
    assert row["bytes_swap"] == sum(moved)
    return moved


CASES: dict[str, tuple[ModelSpec, dict[str, Any]]] = {
    "sage": (ModelSpec(name="sage", layers=3, hidden=8, dropout=0.5, norm="layer"), {}),
    "gcn": (ModelSpec(name="gcn", layers=4, hidden=8, linear_layers=1, residual=True), {}),
    "gat": (ModelSpec(name="gat", layers=3, hidden=8, heads=2, norm="layer"), {}),
    "mixhop": (ModelSpec(name="mixhop", layers=2, hidden=9, norm="layer"), {}),
    "precompute": (ModelSpec(name="sage", layers=2, hidden=8), {"precompute": True, "transform_before_exchange": True}),
}


LIMITS: list[dict[str, Any]] = [
    {},
    *({"budget_share": share, "policy": policy} for share, policy in itertools.product((0, 0.8), ("dp", "lru"))),
]


@pytest.mark.slow
def test_losses_and_weights_are_those_of_full_bit_for_bit(tmp_path: Path) -> None:
    parts = np.random.default_rng(3).permutation(np.arange(NODES) % 2)
    data = on_disk(random_graph(31, NODES), parts, 2, False, tmp_path)
    cases = [
        Case(data, method, options | limit, model, SPEC)
        for model, options in CASES.values()
        for method, limit in [("full", {}), *(("roc", limit) for limit in LIMITS)]
    ]
    outcomes = run_ranks(train, 2, cases)[0]
    of_each = 1 + len(LIMITS)
    for start in range(0, len(cases), of_each):
        full, free, *limited = outcomes[start : start + of_each]
        for found in (free, *limited):
            assert [row["loss"] for row in found.rows] == [row["loss"] for row in full.rows]
            assert all(np.array_equal(found.after[name], full.after[name]) for name in full.after)
            assert all(swapped(found, epoch) == swapped(found, 0) for epoch in range(1, EPOCHS))
            for purpose in ("feature", "embedding", "gradient", "model"):
                assert found.rows[1][f"bytes_{purpose}"] == full.rows[1][f"bytes_{purpose}"]
        tight_dp, tight_lru, loose_dp, loose_lru = (sum(swapped(found, 1)) for found in limited)
        assert sum(swapped(free, 1)) < loose_dp < tight_dp <= tight_lru
        assert loose_dp <= loose_lru < tight_lru


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


@pytest.mark.quick(1)
@pytest.mark.parametrize("policy", ["dp", "lru"])
@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "mixhop"])
def test_an_epoch_moves_and_holds_what_was_planned(model: str, policy: str, alone: OnDisk) -> None:
    """Bytes by the traffic, memory by torch's allocator, which knows no plan.

    Left out of the budget is what no operation's result shows: the workspaces of oneDNN's products, hence double
    precision, and two numbers while the gradient of `gat`'s mean over heads is divided.
    """
    network = CASES[model][0]
    unseen = {0, 16} if model == "gat" else {0}
    free = traced_of(alone, network, DOUBLE)
    moved = []
    for budget in np.linspace(free.least, free.most, 4).astype(int).tolist():
        trainer = Case(alone, "roc", {"budget_mib": budget / MIB, "policy": policy}, network, DOUBLE).trainer(0, 1)
        method = trainer.method
        assert isinstance(method, ROC)
        first = trainer.train_epoch(0)
        peak = allocated(lambda trainer=trainer: one_step(trainer))
        planned = method.trace.peak(method.plan.away)
        assert peak - planned in unseen
        assert planned == first["stats"]["arena_peak_bytes"] <= budget
        back, away = method.trace.moved(method.plan.away)
        assert first["bytes_swap"] == 2 * NODES * FEATURES * ITEM + back + away
        moved.append(back + away)
    assert moved[0] > moved[-1] == 0
    assert moved == sorted(moved, reverse=True)


def one_step(trainer: Trainer) -> None:
    """Do the forward and backward pass of a step as the trainer does, without what it looks at beside them."""
    [step] = trainer.method.steps(0)
    with step.around():
        logits = trainer.worker.model(step.blocks, step.inputs, step.exchange)
        loss = loss_sum(logits, step.loss)
        loss.backward()


def test_a_budget_that_one_layer_exceeds_ends_as_oom_and_the_record_says_what_a_device_is(
    alone: OnDisk, least: int
) -> None:
    small = run_to_the_end(0, 1, Case(alone, "roc", {"budget_mib": 1 / 1024}, MODEL, SPEC))
    assert small["status"] == "oom"
    assert small["reason"] == (
        f"layer 2, backward pass: what is in use at once needs {least / MIB:.4g} MiB ({least} bytes) on the device, "
        "the budget is 0.0009766 MiB"
    )
    assert "emulated" in " ".join(small["remarks"])
    assert run_to_the_end(0, 1, Case(alone, "roc", {"budget_mib": (least - 1) / MIB}, MODEL, SPEC))["status"] == "oom"
    assert run_to_the_end(0, 1, Case(alone, "roc", {"budget_mib": least / MIB}, MODEL, SPEC))["status"] == "ok"


def test_what_a_budget_comes_to_is_said(alone: OnDisk, least: int) -> None:
    trace = traced_of(alone)
    free, wide, tight = (
        run_to_the_end(0, 1, Case(alone, "roc", options, MODEL, SPEC))
        for options in ({}, {"budget_share": 1}, {"budget_share": 0.5})
    )
    [_, none] = free["remarks"]
    assert none.startswith("No budget is set (budget_mib, budget_share), so that nothing leaves the device")
    assert f"{trace.most / MIB:.4g} MiB are there" in none
    assert f"{least / MIB:.4g} MiB would do" in none
    assert wide["remarks"][1].startswith("Nothing leaves the device")
    assert len(tight["remarks"]) == 1
    told = method_of(Case(alone, "roc", {"budget_share": 0.5}, MODEL, SPEC)).setup_metrics()
    assert (told["arena_least_bytes"], told["arena_most_bytes"]) == (trace.least, trace.most)
    assert told["planning_s"]
    assert tight["epochs"][1]["stats"]["bookkeeping_s"] > 0 == free["epochs"][1]["stats"]["bookkeeping_s"]
    assert tight["epochs"][1]["stats"]["arena_peak_bytes"] <= (least + trace.most) // 2


def test_a_share_is_between_what_the_largest_rank_holds_at_least_and_at_most(tmp_path: Path) -> None:
    parts = (np.arange(NODES) < NODES // 4).astype(int)
    data = on_disk(random_graph(31, NODES), parts, 2, False, tmp_path)
    (least, most, budget), (other_least, other, other_budget) = run_ranks(
        planned, 2, Case(data, "roc", {"budget_share": 0.25}, MODEL, SPEC)
    )
    assert (most, least) > (other, other_least)
    assert budget == other_budget == least + (most - least) // 4


def planned(rank: int, world: int, case: Case) -> tuple[int, int, int | None]:
    """Return the least and the most that a step of this rank has on the device, and its budget."""
    method = case.trainer(rank, world).method
    assert isinstance(method, ROC)
    return method.trace.least, method.trace.most, method.budget


def test_planning_leaves_no_trace_in_the_training(alone: OnDisk) -> None:
    """Neither generators nor weights nor gradients are changed, nor is a hook left."""
    full, roc = (Case(alone, name, {}, CASES["sage"][0], SPEC).trainer(0, 1) for name in ("full", "roc"))
    assert torch.equal(full.flat.values, roc.flat.values)
    assert not roc.flat.values.grad.any()  # type: ignore[union-attr]
    assert torch.equal(torch.get_rng_state(), torch.get_rng_state())
    states = [trainer.worker.rng.bit_generator.state for trainer in (full, roc)]
    assert states[0] == states[1]
    for mine, theirs in zip(roc.worker.model.modules(), full.worker.model.modules(), strict=True):
        assert len(mine._forward_pre_hooks) == len(theirs._forward_pre_hooks) == 0


def test_one_budget_is_enough() -> None:
    with pytest.raises(ValidationError, match="one of budget_mib and budget_share"):
        ROC.Options(budget_mib=1, budget_share=0.5)


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize(("order", "layers", "tail"), [(1, 2, 0), (2, 2, 0), (2, 1, 0), (3, 1, 1)])
def test_memory_of_mixed_powers_is_what_the_arena_sees(
    order: int, layers: int, tail: int, norm: str, tmp_path: Path
) -> None:
    """To a tenth of what is live at once, the input features included."""
    data = on_disk(random_graph(51, NODES, features=64), np.zeros(NODES, int), 1, False, tmp_path)
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
    assert size(case, budget_mib=limit / MIB) == full + features == size(case, budget_share=0.5)
    cuda = replace(case, cuda=True, evaluated=None)
    whole = Full.memory(Full.Options(), cuda)
    rows = sum(size for name, size in whole.items() if name.startswith(("layers", "input")))
    assert size(cuda, budget_mib=limit / MIB) == sum(whole.values()) - rows + limit
    assert size(cuda, budget_share=0.5) == size(cuda)
    # An evaluation is not under the budget.
    evaluated = replace(cuda, evaluated=part)
    assert size(cuda, budget_mib=limit / MIB) < size(evaluated, budget_mib=limit / MIB) <= size(evaluated)
