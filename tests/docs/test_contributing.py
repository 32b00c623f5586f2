"""The five changes of CONTRIBUTING.md, made to a copy of the tree: one file each, and nothing else to change."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from docs.pages import block

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"harness": "harness", "methods": "harness_methods"}
SUITE = """
name: five
plugins: [by_degree.py]
datasets: [{sbm: {nodes: 200, features: 8}}]
model: {name: gin, layers: 2, hidden: 8}
train: {epochs: 3}
partition: {parts: 2, method: ldg}
methods:
  - bns-gcn: {rate: 0.5, scaled: [true, false]}
  - by-degree
device: cpu
timing: "off"
"""
OLD = SUITE.replace(", scaled: [true, false]", "").replace("plugins: [by_degree.py]", "").replace("  - by-degree\n", "")
OLD = OLD.replace("gin", "gcn").replace("ldg", "random")
RUN = """
from contextlib import redirect_stdout, suppress
import sys
from harness.cli import main
with redirect_stdout(sys.stderr), suppress(SystemExit):
    main(['run', 'five.yaml'])
"""
IDS = """
from pathlib import Path
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite
print([trial.id for trial in expand(load_suite(Path("old.yaml")))])
"""
TABLE = """
import harness
table = harness.load_results("results")
last = harness.load_epochs("results").groupby("trial")["loss"].last()
print(table.assign(loss=table["trial"].map(last)).to_json())
"""


def apply(diff: str, tree: Path) -> Path:
    """Apply a diff whose hunks name no lines; each has to fit in one place. Returns the file."""
    name = re.search(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE).group(1)
    first, _, rest = name.partition("/")
    file = tree / PACKAGES[first] / rest
    text = file.read_text()
    for hunk in re.split(r"^@@ .*\n", diff, flags=re.MULTILINE)[1:]:
        lines = [line or " " for line in hunk.rstrip("\n").split("\n")]
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
        assert text.count(before) == 1, hunk
        text = text.replace(before, "".join(f"{line[1:]}\n" for line in lines if line[0] != "-"))
    file.write_text(text)
    return file


def python(tree: Path, code: str) -> str:
    """Run code in an interpreter that finds the copy; its output."""
    env = os.environ | {"PYTHONPATH": str(tree), "HARNESS_CACHE": str(tree / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree / "work", env=env, text=True, capture_output=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages, in front of those that are installed."""
    for source, package in PACKAGES.items():
        shutil.copytree(ROOT / source, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "work").mkdir()
    return tmp_path


@pytest.mark.slow
def test_five_changes_of_one_file_each(tree: Path) -> None:
    (tree / "work" / "old.yaml").write_text(OLD)
    ids = python(tree, IDS)

    page = (ROOT / "CONTRIBUTING.md").read_text()
    files = {"harness/models/gin.py": "model", "harness/data/partition/ldg.py": "partitioner"}
    assert all(f"`{file}`" in page for file in files)
    for file, tutorial in (files | {"work/by_degree.py": "method"}).items():
        assert not (tree / file).exists()
        (tree / file).write_text(block(tutorial, "python"))
    diffs = re.findall(r"^```diff\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert {apply(diff, tree).name for diff in diffs} == {"metrics.py", "bns_gcn.py"}

    (tree / "work" / "five.yaml").write_text(SUITE)
    now, table = python(tree, IDS + RUN + TABLE).splitlines(keepends=True)
    assert now == ids  # an option that came later changed no trial
    found = pd.read_json(io.StringIO(table))
    assert list(found["status"]) == ["ok"] * 3
    assert set(found["partitioner"]) == {"ldg"}
    assert found["model"].str.startswith("gin").all()
    purposes = [f"bytes_{purpose}" for purpose in ("feature", "embedding", "gradient", "model", "control")]
    np.testing.assert_allclose(found["model_share"], found["bytes_model"] / found[purposes].sum(axis=1), rtol=1e-9)
    own = found[found["method"] == "bns-gcn"]
    unscaled = own["options"].map(lambda options: "scaled" in options)
    first, second = own.loc[unscaled, "loss"], own.loc[~unscaled, "loss"]
    assert (first.size, second.size) == (1, 1)
    assert first.iloc[0] != pytest.approx(second.iloc[0], rel=1e-6)
