"""`harness project`: what it prints, and its mistakes."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from support.networks import write_networks

from harness.cli import main


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_networks(tmp_path_factory.mktemp("project"))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        main([str(argument) for argument in ("project", *arguments)])
    captured = capsys.readouterr()
    return int(exited.value.code or 0), captured.out, captured.err


def rows_of(out: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(out)))


def test_a_row_a_trial_and_network(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Made up: 0.3 s of compute; `full` moves 1448 kB each way, `bns-gcn` a tenth; 0.02 s on the loopback."""
    code, out, err = run(capsys, results, "--network", "12.112mbit,nvlink", "--latency", "1ms", "--format", "csv")
    rows = rows_of(out)
    assert code == 0
    assert "not measurements" in err
    assert "NVIDIA" in err
    assert "has one rank" in err
    assert [(row["label"].split()[2], row["network"], row["base"]) for row in rows] == [
        ("bns-gcn(rate=0.1)", "12.112mbit", "none"),
        ("bns-gcn(rate=0.1)", "nvlink", "none"),
        ("full", "12.112mbit", "none"),
        ("full", "nvlink", "none"),
    ]
    figures = [{key: float(row[key]) for key in row if key.endswith(("s", "%", "full"))} for row in rows]
    bns, fast, full, _ = figures
    assert (full["measured s"], full["compute s"]) == pytest.approx((0.32, 0.3))
    assert (full["exchange s"], bns["exchange s"]) == pytest.approx((1.001, 0.101))
    assert full["communication %"] == pytest.approx(100 * 1.001 / 1.301)
    assert bns["speed-up over full"] == pytest.approx(1.301 / 0.401)
    assert fast["projected s"] == pytest.approx(0.3 + 144_800 * 8 / 3.6e12 + 0.001)


def test_a_shaped_trial_as_base(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, results, "--base", "100mbit", "--network", "100gbit", "--format", "csv")
    assert code == 0
    assert {row["base"] for row in rows_of(out)} == {"100mbit"}
    assert all(float(row["projected s"]) < float(row["measured s"]) for row in rows_of(out))


def test_validation_names_the_largest_error(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Made up: shaped trials take 10 % longer than compute and wire."""
    code, out, _ = run(capsys, results, "--validate")
    assert code == 0
    assert out.count(" -9.091") == 4
    assert "\nLargest error: -9.1 % (" in out
    assert "not measurements" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--network nvlnk", "--network: unknown network 'nvlnk' (did you mean 'nvlink'?; "),
        ("--network 10gbit,", "--network: unknown network ''"),
        ("--network 0gbit", "--network: '0gbit' is no rate: it must be more than 0"),
        ("--latency soon", "--latency: 'soon' is not understood"),
        ("--base 10mbit", "--base: no trial ran on network '10mbit' (did you mean '100mbit'?)"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    results: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    code, out, err = run(capsys, results, *arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_wrong_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no such directory of results" in run(capsys, tmp_path / "nowhere")[2]
    lone = write_networks(tmp_path / "a", networks=[None])
    code, _, err = run(capsys, lone, "--validate")
    assert code == 2
    assert "differ only in network" in err
    code, _, err = run(capsys, write_networks(tmp_path / "b", networks=[]))
    assert code == 2
    assert "holds no trial to project" in err
