"""Optimizers, schedules and clipping, held against torch's own and against formulas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.methods import SMALL
from support.ranks import run_ranks
from support.training import modules_after
from torch import Tensor
from torch.optim import lr_scheduler

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.optimizers import learning_rate, light, schedule_of
from harness.runtime.run_config import TrainSpec
from harness.runtime.trainer import Trainer


def rates(spec: TrainSpec, scores: dict[int, float] | None = None) -> list[float]:
    """Return the rate of every epoch; `scores`: what evaluations after some epochs tell."""
    schedule, found = schedule_of(spec), []
    for epoch in range(spec.epochs):
        found.append(learning_rate(spec, schedule, epoch))
        if scores and epoch in scores:
            schedule.evaluated(scores[epoch])
    return found


def torch_rates(epochs: int, lr: float, make: Any, scores: dict[int, float] | None = None) -> Iterator[float]:
    """Yield the rate of every epoch of one of torch's schedulers."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    scheduler = make(optimizer)
    for epoch in range(epochs):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        if scores is None:
            scheduler.step()
        elif epoch in scores:
            scheduler.step(scores[epoch])


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        ("constant", lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        ({"steps": {"every": 3, "factor": 0.3}}, lambda o: lr_scheduler.StepLR(o, step_size=3, gamma=0.3)),
        ("cosine", lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10)),
        ({"cosine": {"least": 0.2}}, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10, eta_min=0.2 * 0.05)),
    ],
)
def test_schedules_are_torchs(schedule: Any, make: Any) -> None:
    spec = TrainSpec(epochs=10, lr=0.05, schedule=schedule)
    assert rates(spec) == pytest.approx(list(torch_rates(10, 0.05, make)), rel=1e-12)


def test_the_rate_rises_before_a_schedule_begins() -> None:
    spec = TrainSpec(epochs=14, lr=0.05, schedule="cosine", lr_warmup=4)

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        rise = lr_scheduler.LinearLR(optimizer, start_factor=1 / 5, total_iters=4)
        fall = lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
        return lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[4])

    assert rates(spec) == pytest.approx(list(torch_rates(14, 0.05, make)), rel=1e-12)


def test_a_plateau_follows_the_validation_scores() -> None:
    scores = {1: 0.5, 3: 0.6, 5: 0.6, 7: 0.55, 9: 0.6, 11: 0.61, 13: 0.61, 15: 0.61, 17: 0.61}
    spec = TrainSpec(epochs=20, lr=0.05, schedule={"plateau": {"factor": 0.1, "patience": 1, "least": 0.02}})

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.ReduceLROnPlateau:
        return lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="max", factor=0.1, patience=1, threshold=0, min_lr=0.02 * 0.05
        )

    found = rates(spec, scores)
    assert found == pytest.approx(list(torch_rates(20, 0.05, make, scores)), rel=1e-12)
    assert [found[e] for e in (7, 8, 15, 16, 19)] == pytest.approx([0.05, 0.005, 0.005, 0.001, 0.001])


def trainer_of(spec: TrainSpec, out: Path) -> Trainer:
    graph = random_graph(3)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, out)
    model = ModelSpec(name="sage", layers=2, hidden=8, dropout=0)
    return Case(data, "full", {}, model, spec).trainer(0, 1)


@pytest.mark.parametrize("clip", [None, 0.01, 1e9])
def test_adamw_and_clipping_step_as_their_formulas_say(
    clip: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TrainSpec(
        epochs=6, lr=0.02, optimizer="adamw", weight_decay=0.3, clip=clip, lr_warmup=2,
        schedule={"steps": {"every": 2, "factor": 0.5}}, precision="float64", threads=1, eval_every=0,
    )  # fmt: skip
    trainer = trainer_of(spec, tmp_path)
    gradients: list[Tensor] = []
    flat = trainer.flat
    monkeypatch.setattr(
        trainer.method,
        "on_step_end",
        lambda loss: gradients.append(flat.values.grad.clone()),  # type: ignore[union-attr]
    )
    weights = flat.values.detach().clone().numpy()
    for epoch in range(spec.epochs):
        trainer.train_epoch(epoch)
    first = second = np.zeros_like(weights)
    assert len(gradients) == spec.epochs
    for step, gradient in enumerate(gradients, 1):
        lr = 0.02 * (step / 3 if step <= 2 else 0.5 ** ((step - 3) // 2))
        g = gradient.numpy()
        if clip is not None:
            g = g * min(1.0, clip / (np.sqrt((g**2).sum()) + 1e-6))
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        weights = weights * (1 - lr * 0.3)
        weights = weights - lr * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(flat.values.detach().numpy(), weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"weight_decay": 0.1}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.RMSprop, {}),
    ],
)
def test_a_light_optimizer_is_torchs_to_the_last_bit(kind: type[torch.optim.Optimizer], options: Any) -> None:
    """Its hooks are called too, and its state is the other's; weights that it steps need no gradient of that."""
    found, hooked = [], []
    for make in (kind, light(kind)):
        torch.manual_seed(0)
        weights, data = torch.nn.Parameter(torch.randn(7)), torch.randn(5, 7)
        optimizer = make([weights], lr=0.1, **options)
        optimizer.register_step_pre_hook(lambda *_: hooked.append(0))
        for step in range(4):
            optimizer.zero_grad()
            ((data @ weights) ** 2).sum().backward()
            optimizer.step()
            if step == 1:
                state = optimizer.state_dict()
                optimizer = make([weights], lr=0.5, **options)
                optimizer.load_state_dict(state)
        assert isinstance(optimizer, kind)
        found.append((weights, optimizer.state_dict()["state"][0]))
    assert len(hooked) == 4
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(found[1][1][k])) for k, value in found[0][1].items())


@pytest.mark.slow
def test_no_training_imports_torchs_compiler(tmp_path: Path) -> None:
    data = on_disk(random_graph(3, 24, degree=3, features=4), np.arange(24) % 2, 2, False, tmp_path)
    models = {"gat": {"heads": 2}, "gcn": {}, "mixhop": {"order": 2}, "sage": {}}
    once = TrainSpec(epochs=1, threads=1)
    cases = [
        Case(data, name, SMALL.get(name, {}), ModelSpec(name=model, layers=2, hidden=6, **own), once)
        for name in METHODS.names()
        for model, own in (models.items() if name == "full" else [("sage", {})])
    ]
    for optimizer in ("adamw", "sgd"):
        spec = TrainSpec(epochs=2, threads=1, optimizer=optimizer, schedule="plateau", eval_every=1)
        cases.append(Case(data, "full", {}, ModelSpec(layers=1), spec))
    for imported in run_ranks(modules_after, 2, cases):
        assert "torch.optim" in imported
        assert {"torch._dynamo", "sympy"} & imported == set()


def test_an_evaluation_lowers_the_rate_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TrainSpec(
        epochs=6, lr=0.01, schedule={"plateau": {"factor": 0.5, "patience": 0}}, eval_every=2, threads=1
    )  # fmt: skip
    trainer = trainer_of(spec, tmp_path)
    monkeypatch.setattr(trainer, "scores", lambda: {"train": 0.5, "val": 0.5, "test": 0.5})  # never better
    with trainer.report.concluding():
        trainer.report.setup(trainer.worker, trainer.method, {}, {})
        trainer.run()
    assert [row["lr"] for row in trainer.report.epochs] == [0.01, 0.01, 0.01, 0.01, 0.005, 0.005]


def test_a_rise_that_leaves_no_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="`lr_warmup` of 5 leaves none of 5 epochs"):
        TrainSpec(epochs=5, lr_warmup=5)
