from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.results.record_store import ResultStore, kept, write_suite
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

SLOW = ("llvmlite", "numba", "numpy", "torch")
COMMANDS = [
    "plan quickstart", "suites", "list methods", "list models", "list datasets", "list partitioners", "status results",
    "data info digits", "schema", "new method mine", "new suite mine",
]  # fmt: skip


def python(script: str, *arguments: str, cwd: Path | None = None, **env: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=200, cwd=cwd, env=os.environ | env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.quick(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_trains_nothing_imports_no_numpy_numba_or_torch(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_DATA", raising=False)  # arrays of a user's own are read with numpy
    suite = load_suite(Path(__file__).parents[1] / "suites" / "quickstart.yaml")
    store = ResultStore(tmp_path / "results", suite.name)
    store.directory.mkdir(parents=True)
    write_suite(store.directory, kept(suite, expand(suite)))
    script = (
        "import sys\nfrom harness.cli import main\n"
        "try: main(sys.argv[2:])\nexcept SystemExit as end: assert not end.code, end.code\n"
        "print('imported:', *sorted(set(sys.argv[1].split()) & set(sys.modules)))"
    )
    said = python(script, " ".join(SLOW), *command.split(), cwd=tmp_path)
    assert said.splitlines()[-1].split() == ["imported:"]
    assert len(said.splitlines()) > 1  # it did what it does


KERNELS = """
import json, sys
import numpy as np
if sys.argv[1] == "first": import numba
from harness.deferred import Kernel
from harness.graph import kernels, spmm
from harness_methods.graphsaint import node_samplers
assert isinstance(kernels.gather, Kernel) == (sys.argv[1] == "later"), sys.argv
indptr, indices = np.array([0, 2, 3, 3]), np.array([1, 2, 0], np.int32)
x, out = np.arange(12, dtype=np.float32).reshape(3, 4), np.empty((3, 4), np.float32)
spmm.multiply_rows(0, 3, indptr, indices, None, x, out, 16)  # an intrinsic
found = {
    "product": out.tolist(),
    "gathered": kernels.gather(np.arange(9.0), np.array([3, 1, 8])).tolist(),  # a kernel that has an intrinsic
    "lowest": int(node_samplers._lowest(np.uint64(40))),  # an intrinsic of numba's, by its module
}
import numba
at = kernels.below
@numba.njit
def of_a_user(value): return at(value, 10)
found["called"] = int(of_a_user(np.uint64(1) << np.uint64(63)))
misses = sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels.kernels().values())
print(json.dumps([found, misses]))
"""


@pytest.mark.slow
def test_deferred_kernels_are_the_same_and_share_their_cache(tmp_path: Path) -> None:
    def run(order: str) -> tuple[dict[str, object], int]:
        found, misses = json.loads(python(KERNELS, order, NUMBA_CACHE_DIR=str(tmp_path)))
        return found, misses

    found, misses = run("later")
    assert found == {
        "product": [[12, 14, 16, 18], [0, 1, 2, 3], [0, 0, 0, 0]], "gathered": [3, 1, 8], "lowest": 3, "called": 5,
    }  # fmt: skip
    assert misses > 3
    assert run("first") == (found, 0)
    assert run("later") == (found, 0)


def test_ranks_have_every_kernel_at_once() -> None:
    script = (
        "import sys\nfrom harness.launch.fork_server import import_for_ranks\nimport_for_ranks()\n"
        "import harness.models.gnn\n"
        "from harness.deferred import Kernel\n"
        "ours = [m for name, m in sys.modules.items() if name.split('.')[0] in ('harness', 'harness_methods')]\n"
        "print(len(ours), *{v.__name__ for m in ours for v in vars(m).values() if isinstance(v, Kernel)})\n"
        "from harness.graph.kernels import kernels\nprint(len(kernels()))"
    )
    modules, kernels = python(script).splitlines()
    assert int(modules) > 80  # and no name behind
    assert int(kernels) > 90


def test_a_module_is_imported_once_and_seen_through(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("value = 1\ndef __getattr__(name):\n    return name\n")
    script = (
        "import sys\nfrom harness.deferred import Deferred\nlater = Deferred('slow')\n"
        "assert 'slow' not in sys.modules\nassert later.value == 1\nimport slow\n"
        "slow.value = 2\nlater.other = 3\nprint(later.value, slow.other, later.unknown)"
    )
    assert python(script, PYTHONPATH=str(tmp_path)) == "2 3 unknown\n"
