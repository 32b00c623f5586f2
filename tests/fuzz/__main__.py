"""`python -m tests.fuzz --count N [--target NAME] [--first K] [--keep DIR]`: N inputs a target, and a table."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # helpers of tests

from fuzz.campaign import KEPT, campaign
from fuzz.watch import Tally

NAMES = (
    *("suite", "options", "neutral", "ogb-csv", "ogb-binary", "dgl-reddit", "graphsage", "graphsaint"),
    *("planetoid", "mislove"),
    *(f"import-{kind}" for kind in ("csv", "csv-gz", "parquet", "mtx", "npz", "pt")),
    *("archive", "parts", "record", "epochs", "beside", "claims", "leases", "rendezvous"),
)


def main() -> int:
    """Return 1 if an input was neither accepted nor refused in clean lines, in time and memory."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Hostile input for every reader.")
    parser.add_argument("--count", type=int, default=2_000, help="inputs a target")
    parser.add_argument("--target", action="append", choices=NAMES, help="only these; may be repeated")
    parser.add_argument("--first", type=int, default=0, help="number of the first input: other numbers, other inputs")
    parser.add_argument("--keep", type=Path, help="directory for inputs of violations")
    given = parser.parse_args()
    found: dict[str, Tally] = {}
    heads = "inputs", "accepted", "refused", "violations", "slowest", "most memory", "took"
    print(f"{'target':<12}" + "".join(f"{head:>13}" for head in heads))
    for name in given.target or NAMES:
        start = time.monotonic()
        tally = found[name] = campaign(name, given.first, given.count, given.keep)
        print(
            f"{name:<12}{given.count:>13,}{tally.accepted:>13,}{tally.refused:>13,}{len(tally.violations):>13,}"
            f"{tally.seconds:>11.2f} s{tally.grown / (1 << 20):>9.0f} MiB{time.monotonic() - start:>11.0f} s",
            flush=True,
        )
        for line in dict.fromkeys(tally.violations[:KEPT]):
            print(f"  {line}")
    return int(any(tally.violations for tally in found.values()))


if __name__ == "__main__":
    sys.exit(main())
