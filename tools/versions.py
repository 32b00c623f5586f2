"""Tries the lowest and the highest versions of dependencies that pyproject.toml allows: `make versions`.

Each is installed into an environment of its own, in which the commands of `COMMANDS` run. torch is the one of
constraints.txt: an index may have no other build for CPUs. Wheels of directories in PIP_FIND_LINKS are used, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = """\
name: versions
datasets: [{sbm: {nodes: 300, features: 8}}]
model: {name: sage, layers: 2, hidden: 8}
train: {epochs: 8, eval_every: 2}
partition: {parts: 2}
methods: [full, {psc-gcn: {rate: 0.5}}, {graphsage: {fanouts: 3, batch_size: 32}}, {dgs: {fanouts: 3, batch_size: 64}}]
seeds: [0, 1]
device: cpu
tuning: {budget: {trials: 2}}
"""
EDGES = "source,target\n" + "".join(f"{i},{(i + 1) % 30}\n" for i in range(30))
COMMANDS = [
    "doctor", "list methods", "suites", "plan versions.yaml", "run versions.yaml", "status results",
    "report results/versions --format html,md,csv,latex,svg,pdf-figures",
    "compare results/versions --method psc-gcn --against full", "project results/versions --network 10gbit",
    "tune versions.yaml --set methods=[psc-gcn] --set seeds=[0,1,2,3,4]",
    "schema --out schema.json",
    "data import edges.csv --name mine --features x.csv --labels labels.csv --splits 0.6,0.2,0.2 --data-dir data",
    "data info mine --data-dir data",
]  # fmt: skip
"""Commands that between them import every dependency and call most of what is used of it."""


def installed(python: Path, uv: Path, resolution: str) -> list[str]:
    """Install this project and its dependencies by a rule of uv's; return what was chosen of the direct ones."""
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    links = [word for place in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", place)]
    chosen, only = python.parents[1] / "chosen.txt", python.parents[1] / "torch.txt"
    only.write_text(f"{torch}+cpu\n" if links else f"{torch}\n")
    resolve = ["pip", "compile", "-q", "--resolution", resolution, "--override", only, "--python", python, *links]
    _run([uv, *resolve, "-o", chosen, ROOT / "pyproject.toml"])
    _run([uv, "pip", "install", "-q", "--python", python, *links, "-r", chosen])
    _run([uv, "pip", "install", "-q", "--python", python, "--no-deps", ROOT])
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[^\w.-]", each)[0].replace(".", "-") for each in wanted}
    return [line for line in chosen.read_text().splitlines() if line.partition("==")[0] in names]


def failures(harness: Path, place: Path) -> Iterator[str]:
    """Run the commands; yield those that fail, with the last line that they said."""
    (place / "data").mkdir()
    (place / "versions.yaml").write_text(SUITE)
    (place / "edges.csv").write_text(EDGES)
    (place / "x.csv").write_text("x,y\n" + "".join(f"{i / 30},{i % 2}\n" for i in range(30)))
    (place / "labels.csv").write_text("label\n" + "".join(f"{i % 2}\n" for i in range(30)))
    environment = os.environ | {"HARNESS_CACHE": str(place / "cache"), "NO_COLOR": "1"}
    environment.pop("PYTHONPATH", None)
    for command in COMMANDS:
        asked = [str(harness), *command.split()]
        done = subprocess.run(
            asked, cwd=place, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode or "Traceback" in done.stderr:
            said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
            yield f"harness {command}: exit code {done.returncode}: {said[-1]}"


def _run(command: Sequence[object]) -> None:
    subprocess.run([str(word) for word in command], check=True)


def main() -> int:
    """Try both; return 1 if a command failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        tool = Path(place) / "uv"
        venv.create(tool, with_pip=True)
        _run([tool / "bin" / "pip", "install", "-q", "uv"])
        for resolution in ("lowest-direct", "highest"):
            home = Path(place) / resolution
            venv.create(home / "venv")
            chosen = installed(home / "venv" / "bin" / "python", tool / "bin" / "uv", resolution)
            found = list(failures(home / "venv" / "bin" / "harness", home))
            failed += bool(found)
            print(f"{resolution}, Python {sys.version.split()[0]}: {', '.join(chosen)}", *found, sep="\n  ")
            print(f"  {len(COMMANDS) - len(found)} of {len(COMMANDS)} commands ran", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
