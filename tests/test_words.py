"""Words that the product's text is to do without, each with a better one.

`tests/words.allow` says how often each may still occur, by top directory, since files move.
`python tests/test_words.py --renew` writes today's counts, and refuses one that has grown.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "tests" / "words.allow"
TEXT = (".py", ".pyi", ".md", ".yaml", ".toml", ".j2", ".js", ".html")
# Pages made from docstrings, which are counted where they are; vega is not our text.
MADE = ("docs/reference/", "harness/report/static/")
# Patterns are of whole words, and of words in names: `tell` is found in `on_tell`, not in `intelligible`.
BETTER = {
    "told": "reported, notified, given",
    "tells?": "report, notify, say",
    "beside": "next to, at the same time as, besides",
    "whoever": "the user who, whichever process",
    "somebody": "a user, another user",
    "soonest": "fastest to target",
    r"of\s+all\s+that": "of everything that",
    "seats?": "slot",
    "sits?|sat": "acquire, is in",
    r"(?:stands?|stood)\s+still": "hang",
    "pulses?": "heartbeat",
    "beats?": "heartbeat, is faster than",
    "painters?": "render worker",
    "strips": "chunked evaluation",
    r"(?<!of\s)courses?": "learning curve",
    "foreseen": "warning, forecast",
    "remarks?": "warning",
}


def files() -> Iterator[Path]:
    """Yield what git knows of the product's text and its documentation."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "harness", "methods", "suites", "docs", "README.md"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        if name.endswith(TEXT) and not name.startswith(MADE) and (ROOT / name).exists():
            yield Path(name)


@functools.cache
def finds() -> dict[tuple[str, str], list[str]]:
    """Return where each pattern occurs, as file:line, by top directory and pattern."""
    patterns = list(BETTER)
    search = re.compile(f"(?<![a-z])(?:{'|'.join(f'({pattern})' for pattern in patterns)})(?![a-z])")
    found: dict[tuple[str, str], list[str]] = {}
    for file in files():
        text = (ROOT / file).read_text(encoding="utf-8").lower()
        for hit in search.finditer(text):
            line = text.count("\n", 0, hit.start()) + 1
            found.setdefault((file.parts[0], patterns[(hit.lastindex or 1) - 1]), []).append(f"{file}:{line}")
    return found


def allowed() -> dict[tuple[str, str], int]:
    """Return how often each pattern may occur in each top directory; what is not listed may not."""
    counts = {}
    for line in ALLOWED.read_text().splitlines():
        top, count, pattern = line.split(maxsplit=2)
        counts[top, pattern] = int(count)
    return counts


def problems(found: dict[tuple[str, str], list[str]], limits: dict[tuple[str, str], int]) -> list[str]:
    """Return a line for each pattern that occurs more often than it may."""
    return [
        f"{top}: {len(lines)} of /{pattern}/, {limits.get((top, pattern), 0)} allowed; "
        f"better: {BETTER[pattern]}; in {', '.join(lines)}"
        for (top, pattern), lines in sorted(found.items())
        if len(lines) > limits.get((top, pattern), 0)
    ]


def test_words_of_the_product_are_the_fields() -> None:
    assert problems(finds(), allowed()) == []


def test_a_word_too_many_is_seen() -> None:
    found = dict(finds())
    counts = Counter({key: len(lines) for key, lines in found.items()})
    assert problems(found, counts) == []
    found["methods", "somebody"] = [*found.get(("methods", "somebody"), []), "methods/mine.py:7"]
    assert [line.split(":")[0] for line in problems(found, counts)] == ["methods"]


def renew() -> int:
    """Write today's counts and return the exit code: 1, and nothing is written, where one has grown."""
    found = finds()
    if ALLOWED.exists() and (grown := problems(found, allowed())):
        print(*grown, sep="\n", file=sys.stderr)
        return 1
    lines = [f"{top} {len(lines)} {pattern}\n" for (top, pattern), lines in sorted(found.items())]
    ALLOWED.write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(renew() if sys.argv[1:] == ["--renew"] else f"usage: {sys.argv[0]} --renew")
