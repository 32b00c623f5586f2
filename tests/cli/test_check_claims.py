"""`harness check-claims`: what it prints of a suite's results, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report.fake import write_results

from harness.claims import suite_of
from harness.cli import main
from harness.results.record import read_record
from harness.results.record_store import KeptSuite, ResultStore, write_suite
from harness.suite.expand import expand
from harness.suite.schema import TrialConfig
from harness.suite.sections import Claim
from harness.suite.suite_file import load_suite

SUITE = """\
name: demo
datasets: [digits]
partition: {parts: [2]}
methods: [full]
device: cpu
"""


def claimed(name: str, expect: dict[str, Any]) -> Claim:
    """Bytes sent by bns-gcn at rate 0.1, over those of full: a tenth, by how the results are made."""
    return Claim.model_validate(
        {
            "name": name,
            "source": "here",
            "metric": "bytes_feature",
            "of": {"method": "bns-gcn"},
            "over": {"method": "full"},
            "expect": expect,
        }
    )


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Results of two methods with a suite kept beside them; runs the command on them."""
    monkeypatch.chdir(tmp_path)
    methods = (("full", {}), ("bns-gcn", {"rate": 0.1}))
    write_results(Path("results"), methods=methods, parts=(2,), seeds=(0, 1), epochs=3)
    configs = [TrialConfig.model_validate(r) for r in _configs(Path("results"))]

    def run(*arguments: str, claims: tuple[Claim, ...] = (), trials: int = 4) -> tuple[int, str, str]:
        if claims:
            suite = KeptSuite(file="demo.yaml", suite={}, name="demo", claims=claims, trials=tuple(configs[:trials]))
            write_suite(Path("results/demo"), suite)
        with pytest.raises(SystemExit) as exited:
            main(["check-claims", *arguments])
        told = capsys.readouterr()
        return int(exited.value.code or 0), told.out, told.err

    return run


def _configs(root: Path) -> list[Any]:
    return [json.loads(path.read_text())["config"] for path in sorted(root.glob("*/*/record.json"))]


def test_a_claim_that_fails_is_exit_code_1(check: Callable[..., tuple[int, str, str]]) -> None:
    good, bad = (
        claimed("a tenth is sent", {"between": [0, 0.2]}),
        claimed("nothing is \x1b[31msent", {"at_most": 0.05}),
    )
    assert check(claims=(good,)) == (
        0,
        "demo: 1 claim: 1 holds; 4 of 4 trials run\n"
        "  ✓ holds: a tenth is sent\n"
        "      source:   here\n"
        "      measures: bytes_feature of bns-gcn over full\n"
        "      expected: between 0 and 0.2 ×\n"
        "      measured: 0.100 [0.100, 0.100] ×\n",
        "",
    )
    code, out, _ = check("results/demo", claims=(good, bad))
    assert code == 1
    assert out.startswith("demo: 2 claims: 1 holds, 1 fails; 4 of 4 trials run\n")
    assert "  ✗ fails: nothing is \\x1b[31msent\n" in out
    code, out, _ = check("results", claims=(bad,), trials=1)
    assert code == 0
    assert "– not measured: nothing" in out
    assert "1 of 1 trial run, 3 trials not of the suite as it is now" in out


def test_mistakes_are_exit_code_2(check: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    assert check("nowhere") == (2, "", "error: nowhere: no such directory of results (run `harness run SUITE` first)\n")
    assert check() == (
        2,
        "",
        "error: results: no suite with claims is kept with these results (name the suite with --suite FILE)\n",
    )
    (tmp_path / "none.yaml").write_text(SUITE)
    assert check("--suite", "none.yaml") == (2, "", "error: none.yaml: the suite claims nothing (give it `claims:`)\n")
    (tmp_path / "other.yaml").write_text(SUITE.replace("demo", "other"))
    assert check("--suite", "other.yaml") == (
        2,
        "",
        "error: other.yaml: no results of suite 'other' (suites there: demo)\n",
    )
    (tmp_path / "results/demo/suite.json").write_text("{")
    fix = "remove it; `harness check-claims --suite FILE` works without it"
    assert f"suite.json: damaged: not JSON ({fix})" in check()[2]


def test_results_without_a_kept_suite_are_held_against_its_file(
    check: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    claim = "  - {name: quick, source: here, metric: epoch_time_s, of: {method: full}, expect: {at_most: 1e-9}}\n"
    file.write_text(SUITE.replace("demo", "own") + "train: {epochs: 3}\nseeds: [0, 1]\nclaims:\n" + claim)
    [config, _] = expand(load_suite(file))
    [any_of_them, *_] = Path("results").glob("demo/*/record.json")
    own = {"suite": "own", "trial": config.id, "config": config.model_dump(mode="json")}
    store = ResultStore(Path("results"), "own")
    store.stage(config.id)
    store.commit(config.id, read_record(any_of_them).model_copy(update=own), [], "")
    code, out, _ = check("--suite", "own.yaml")
    assert code == 0  # of one seed nothing is sure
    assert out.startswith("own: 1 claim: 1 indicated against; 1 of 2 trials run\n")
    assert "why:      not sure: one seed; 1 of 2 seeds count; of the others: not run" in out
    anew = config.model_copy(update={"data": "v2.p"})
    own |= {"trial": anew.id, "config": anew.model_dump(mode="json"), "started": "2999-01-01T00:00:00+00:00"}
    own |= {"dataset": {"name": "digits", "fingerprint": "v2"}, "partition_fingerprint": "p"}
    store.commit(anew.id, read_record(any_of_them).model_copy(update=own), [], "")
    out = check("--suite", "own.yaml")[1]
    assert out.startswith("own: 1 claim: 1 indicated against; 1 of 2 trials run, 1 ")  # another: that of older data
    kept = suite_of(Path("own.yaml"), [Path("results")])
    assert [trial.data for trial in kept.trials] == ["v2.p", "v2.p"]
