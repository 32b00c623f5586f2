"""A suite on shaped networks, as a user runs it."""

from __future__ import annotations

import pytest
from e2e.cli import CommandLine, records

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(150)]

SUITE = """\
name: shaped
datasets: digits
methods: full
partition: {parts: 2}
network: [none, 1gbit]
train: {epochs: EPOCHS, eval_every: 0, threads: 1}
traffic: verify
"""


def test_a_shaped_trial_learns_the_same_and_is_verified(command: CommandLine) -> None:
    (command.directory / "shaped.yaml").write_text(SUITE.replace("EPOCHS", "8"))
    done = command.run("run", "shaped.yaml", "--audit")
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(command.directory / "results" / "shaped").values()
    shaped, loopback = sorted(found, key=lambda record: record["config"]["network"] is None)
    assert shaped["result"]["checksum"] == loopback["result"]["checksum"]
    assert shaped["ranks"][0]["link"]["network"] != shaped["ranks"][1]["link"]["network"]
    assert loopback["ranks"][0]["link"]["network"] == loopback["ranks"][1]["link"]["network"]
    # Nobody else uses these interfaces: what is more are headers and acknowledgements of small messages.
    assert 1 < shaped["result"]["wire_ratio"] < 1.15
    assert 1 < shaped["result"]["interface_ratio"] < 1.2
    assert loopback["result"]["interface_ratio"] is None
    assert all(1 < record["result"]["socket_ratio"] < 1.05 for record in (shaped, loopback))
    assert [flag for flag in shaped["flags"] + loopback["flags"] if not flag.startswith("load")] == []
    assert shaped["result"]["bytes_embedding"] == loopback["result"]["bytes_embedding"]
