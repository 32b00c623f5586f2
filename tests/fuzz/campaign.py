"""Many inputs for each target, each target in processes of its own: what a process dies of is a violation, too."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from .watch import Tally

TESTS = Path(__file__).resolve().parents[1]
BATCH = 5_000  # inputs of one process
HANG_S = 60.0  # without a sign: a reader that no alarm reaches
KEPT = 20  # violations that are shown of a target


def campaign(name: str, first: int, count: int, keep: Path | None = None) -> Tally:
    """Give a target so many inputs, those from number `first` on; `keep`: where inputs of violations are put."""
    tally = Tally()
    for start in range(first, first + count, BATCH):
        _batch(name, start, min(BATCH, first + count - start), tally, keep)
    return tally


def _batch(name: str, first: int, count: int, tally: Tally, keep: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as temporary:
        home = Path(temporary)
        code = f"import sys; sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]; "
        code += "from fuzz.child import main; main(sys.argv[1:])"
        command = [sys.executable, "-P", "-c", code, name, str(first), str(count), temporary]
        with (home / "said").open("w+") as said, (home / "err").open("w+") as err:
            process = subprocess.Popen(command, stdout=said, stderr=err, cwd=temporary)
            hung = _wait(process, home / "input")
            err.seek(0)
            said.seek(0)
            lines, last = said.read().splitlines(), err.read().strip().splitlines()[-1:]
        if process.returncode == 0:
            tally.add(json.loads(lines[-1]))
        else:
            why = f"hung for {HANG_S:g} s" if hung else f"died ({process.returncode}): {' '.join(last)[:200]}"
            tally.violations.append(f"{name}, numbers {first} to {first + count - 1}: the process {why}")
        if keep is not None and tally.violations:
            _keep(home, keep, f"{name}-{first}", process.returncode != 0)


def _wait(process: subprocess.Popen[bytes], sign: Path) -> bool:
    """Wait for a process; end it, and return True, if it has not begun an input for long."""
    seen = -1
    while True:
        try:
            process.wait(HANG_S)
            return False
        except subprocess.TimeoutExpired:
            now = sign.stat().st_mtime_ns if sign.exists() else 0
            if now == seen:
                process.kill()
                process.wait()
                return True
            seen = now


def _keep(home: Path, keep: Path, name: str, died: bool) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    for path in sorted(home.glob("violation-*"))[:KEPT] + (
        [home / "input"] if died and (home / "input").exists() else []
    ):
        (keep / f"{name}-{path.name}").write_bytes(path.read_bytes())
