"""A rank of a trial that is run for its kernels' sake: it writes which it has loaded or compiled.

Run as `harness.runtime.rank`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from harness.runtime.launcher import exit_with_launcher

if __name__ == "__main__":
    exit_with_launcher()  # before torch is imported, which takes seconds

from harness.graph.kernels import loaded
from harness.runtime import rank


def main(arguments: list[str]) -> int:
    """Run one rank as `rank.main` does, and write `kernels{rank}.json`."""
    code = rank.main(arguments)
    path = Path(arguments[0]).with_name(f"kernels{os.environ['RANK']}.json")
    path.write_text(json.dumps(loaded()))
    return code


if __name__ == "__main__":
    rank.leave(main(sys.argv[1:]))
