"""Which model is explained, and what its masks say of nodes."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from harness_methods.dgs import explainer
from harness_methods.dgs.explainer import Explainer
from harness_methods.dgs.explanations import ExplanationGraph, MaskOptions, Masks, star

from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.runtime.clock import Clock

NODES, WIDTH, REMOTE = 7, 3, np.array([1, 4])
PERIOD = 4
LOSSES = [3.0, 1.0, 2.0, float("nan")]


@pytest.mark.parametrize("where", ["inline", "background"])
def test_the_model_of_the_lowest_loss_is_explained(where: str) -> None:
    blocks = star(REMOTE.size, 2, torch.float32)
    features = torch.zeros(1 + REMOTE.size, WIDTH)
    graph = ExplanationGraph(REMOTE, features, features[:1], blocks[-1], blocks, False)
    model = GNN(ModelSpec(layers=2, hidden=4), WIDTH, 2, seed=0, dtype=torch.float32)
    explained = []

    def fake(model: GNN, *_: object) -> Masks:
        explained.append(next(model.parameters()).detach().clone())
        return Masks(torch.tensor([0.2, 0.6]), torch.tensor([0.1, 0.5, 0.9]), [2.0, 1.5], [0.5, 0.25])

    clock = Clock(torch.device("cpu"))
    ours = Explainer(
        graph,
        MaskOptions(),
        model,
        clock,
        NODES,
        period=PERIOD,
        where=where,  # type: ignore[arg-type]
        seed=lambda step: step,
    )
    with mock.patch.object(explainer, "explain", fake):
        for step, loss in enumerate(LOSSES):
            assert ours.advance() is None
            with torch.no_grad():
                next(model.parameters()).fill_(step)
            ours.observe(model, torch.tensor(loss))
        for _ in range(2):  # once is enough: it is due again after so many steps
            ours.advance()
        ours.close()
    assert len(explained) == 1
    assert torch.equal(explained[0], torch.ones_like(explained[0]))
    assert ours.guidance is not None
    assert ours.guidance.step == 1
    np.testing.assert_allclose(ours.guidance.importance, [0.4, 0.2, 0.4, 0.4, 0.6, 0.4, 0.4], rtol=1e-6)
    news = ours.news()
    expected = {"explanations": 1, "explain_steps": 2, "explain_loss": 1.5, "explain_divergence": 0.25}
    assert {name: news[name] for name in expected} == expected
    assert news["explain_sn"] == pytest.approx(0.4)
    assert not any(ours.news().values())
