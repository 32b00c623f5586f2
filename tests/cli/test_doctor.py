"""`harness doctor` tells a defect from what nobody would expect here."""

from __future__ import annotations

import re

import pytest

from harness.cli import doctor as module
from harness.cli.doctor import doctor
from harness.launch import network
from harness.suite.sections import NetworkSpec


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Run it and return state and note by check."""
    doctor()
    found = re.findall(r"^(\S+(?: \S+)*) {2,}(ok|missing|-) *(.*)$", capsys.readouterr().out, re.M)
    return {what: (state, note) for what, state, note in found}


@pytest.mark.slow
def test_no_gpu_is_no_defect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.results import environment

    facts = environment.collect()
    monkeypatch.setattr(environment, "collect", lambda usable: facts | {"gpus": []})
    assert lines(capsys)["nvml"] == ("-", "no GPU")


@pytest.mark.slow
def test_networks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_netem(spec: NetworkSpec) -> str | None:
        return "no netem" if spec.latency_s else None

    monkeypatch.setattr(network, "why_not", lacks_netem)
    checks = lines(capsys)
    assert checks["shaped networks"] == ("ok", "a suite's `network: {rate: ...}`")
    assert checks["netem"] == ("missing", "no netem")
    monkeypatch.setattr(network, "why_not", lambda spec: "needs root")
    assert lines(capsys)["shaped networks"] == ("missing", "needs root")
    assert not {"shaped networks", "netem"} & set(module.REQUIRED)
