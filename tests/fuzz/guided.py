"""`python -m tests.fuzz.guided TARGET --runs N`: inputs that are grown towards code that none has reached yet.

Needs atheris (`pip install atheris`), which no other test does. The first file of each valid sample is the victim.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # helpers of tests


def main() -> None:
    """End with an error at the first violation; atheris ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["harness"]):
        from fuzz.child import Place
        from fuzz.targets import TARGETS
        from fuzz.watch import Watch

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description="Coverage-guided hostile input.")
    parser.add_argument("target", choices=[target.name for target in TARGETS])
    parser.add_argument("--runs", type=int, default=10_000, help="inputs")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="fuzz-guided-"))
    target = next(each for each in TARGETS if each.name == given.target)()
    (home / "samples").mkdir()
    sets = target.samples(home / "samples")
    (home / "corpus").mkdir()
    for number, files in enumerate(sets):
        (home / "corpus" / str(number)).write_bytes(files[target.victims(files)[0]])
    place = Place(target, home / "files", home / "input")
    place.fill(sets[0])
    target.prepare(place.folder)
    target.read(place.folder)
    watch = Watch(home)

    def one(data: bytes) -> None:
        place.try_one(watch, sets[0], target.victims(sets[0])[0], data, "guided")
        tally = watch.tally
        if tally.violations:
            raise AssertionError(f"{tally.violations[-1]} (the input is {home / 'violation-1'})")
        if tally.accepted + tally.refused == given.runs:
            print(
                f"{given.runs:,} inputs: {tally.accepted:,} accepted, {tally.refused:,} refused, no violation",
                flush=True,
            )

    options = ["-handle_alrm=0", "-timeout=0", "-rss_limit_mb=0", f"-runs={given.runs + len(sets) + 2}", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(home / "corpus")], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
