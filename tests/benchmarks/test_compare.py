"""What `harness compare` says of real runs: of a code twice, and of one that sleeps a tenth of its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main

SLOW = '''
import time

from harness_methods.full import Full


class SlowFull(Full):
    """Full-graph training that sleeps for a tenth of what an epoch takes."""

    name = "slow-full"

    def steps(self, epoch):
        began = time.perf_counter()
        yield from super().steps(epoch)
        time.sleep(0.1 * (time.perf_counter() - began))
'''
SEEDS = 8
SUITE = """
name: planted
plugins: [slow.py]
datasets: [{{twin: {{of: reddit, scale: 0.05}}}}]
model: {{layers: 2, hidden: 128}}
train: {{epochs: 30, eval_every: 0, threads: 1}}
methods: [{method}]
seeds: {seeds}
device: cpu
"""


@pytest.mark.timeout(1800)
def test_sleep_is_found_and_nothing_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints both comparisons; a busy machine may hide the sleep, so that nothing is asserted of it."""
    (tmp_path / "slow.py").write_text(SLOW)
    for method in ("full", "slow-full"):
        (tmp_path / f"{method}.yaml").write_text(SUITE.format(method=method, seeds=list(range(SEEDS))))
    for seed in range(SEEDS):  # in turns, so that the machine's drift is the same for all
        for directory, method in (("a", "full"), ("b", "slow-full"), ("a-again", "full")):
            suite, results = tmp_path / f"{method}.yaml", tmp_path / directory
            assert harness("run", suite, "--results", results, "--only", f"seed={seed}") == 0
    capsys.readouterr()
    codes = [harness("compare", tmp_path / "a", tmp_path / after, "--fail-on", "5%") for after in ("a-again", "b")]
    with capsys.disabled():
        print(f"\n{capsys.readouterr().out}\nexit codes: the same code {codes[0]}, the sleep {codes[1]}")
    assert set(codes) <= {0, 1}


def harness(*arguments: object) -> int:
    """Run a command and return its exit code."""
    with pytest.raises(SystemExit) as exited:
        main([str(argument) for argument in arguments])
    return int(exited.value.code or 0)
