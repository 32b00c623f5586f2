"""Write the page of how often statements err, counted on made-up runs of which the truth is known.

python -m tools.error_rates [docs/error-rates.md]

The code is that of `harness compare`, the report and `harness check-claims`. Draws are seeded: the same code gives the
same page.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.claims import State
from tools.made_up import REFERENCE, Claims, Curves, Methods, Rounds, Runs, Searches, compared, decided, share_of
from tools.reference import table

Rate = Callable[[], float]


@dataclass(frozen=True)
class Table:
    """Rates, yet to be counted, with what they are of; `false`: they are to be 5 % at most."""

    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Rate, ...]], ...]
    false: bool = True


MANY, SOME, FEW = 1000, 500, 300  # draws of a rate: of cheap ones, of others, and of many cells


def tables() -> Iterator[Table]:
    """Yield what the page shows."""
    yield from _compare()
    yield from _winners()
    yield from _claims()
    yield from _searches()
    yield from _targets()
    yield from _rounds()


def _table(
    title: str, note: str, head: str, ways: Iterable[str], rows: Iterable[tuple[str, Iterable[Rate]]], **how: bool
) -> Table:
    return Table(title, note, (head, *ways), tuple((name, tuple(rates)) for name, rates in rows), **how)


def _compare() -> Iterator[Table]:
    usual = Runs(cells=4, repeats=3)
    orders = {
        "in turns": usual,
        "in turns, drift": replace(usual, drift="within"),
        "suite by suite, drift": replace(usual, order="suite by suite", drift="within"),
        "one side after the other": replace(usual, order="blocks"),
        "the same, drift between": replace(usual, order="blocks", drift="between"),
        "the same, with reference": replace(usual, order="blocks", drift="between", reference=True),
    }
    noises: dict[str, tuple[float | tuple[float, ...], bool]] = {
        "1 %": (0.01, False),
        "5 %": (0.05, False),
        "20 %": (0.2, False),
        "10 %, heavy tails": (0.1, True),
        "1, 3, 10 and 20 %, a trial each": ((0.01, 0.03, 0.1, 0.2), False),
    }
    rows = (
        (name, [partial(compared, replace(way, noise=noise, heavy=heavy), SOME) for way in orders.values()])
        for name, (noise, heavy) in noises.items()
    )
    note = "4 trials of 3 seeds; the machine drifts by 10 % where it does."
    yield _table("A code compared with itself, by noise", note, "noise from run to run", orders, rows)

    drifting = {
        "in turns, drift": Runs(noise=0.1, drift="within"),
        "one side after the other, drift between": Runs(noise=0.1, order="blocks", drift="between"),
    }
    rows = (
        (
            f"{n} of {k}",
            [partial(compared, replace(w, cells=n, repeats=k), FEW if n > 4 else SOME) for w in drifting.values()],
        )
        for n in (1, 4, 14)
        for k in (1, 2, 5, 10)
    )
    note = "Noise of 10 %, the machine drifts by 10 %."
    yield _table("A code compared with itself, by trials and seeds", note, "trials of seeds", drifting, rows)

    rows = (
        (f"{lag:g}", [partial(compared, Runs(repeats=n, lag=lag, noise=0.01), MANY) for n in (2, 5)])
        for lag in (0, 0.5, 0.9)
    )
    note = "One trial in turns, noise of 1 % beside that of 20 epochs of 2 % each."
    heads = "2 repeats", "5 repeats"
    yield _table("The same, by autocorrelation of epochs", note, "autocorrelation", heads, rows)

    slower = Runs(change=math.log(1.1))
    ways = {
        "A B A B": slower,
        "A B B A": replace(slower, order="A B B A"),
        "A B A B, drift": replace(slower, drift="within"),
        "one side after the other, with reference": replace(slower, order="blocks", reference=True),
        "one side after the other": replace(slower, order="blocks"),
    }
    rows = (
        (
            f"{100 * noise:g} %, {n}",
            [partial(compared, replace(w, noise=noise, repeats=n), MANY) for w in ways.values()],
        )
        for noise, n in ((0.01, 3), (0.03, 1), (0.03, 3), (0.03, 5), (0.03, 10), (0.1, 5), (0.1, 10))
    )
    yield _table("A slowdown of 10 % is found", "One trial.", "noise, repeats", ways, rows, false=False)


def _winners() -> Iterator[Table]:
    ways = {
        "times": Methods(2, 2),
        "times, heavy tails": Methods(2, 2, heavy=True),
        "times, method by method, drift": Methods(2, 2, order="method by method", drift=math.log(1.1)),
        "scores": Methods(2, 2, score=True),
    }
    apart = Methods.told_apart
    rows = (
        (
            f"{count} with {seeds}",
            [partial(share_of, replace(way, count=count, seeds=seeds), FEW, apart) for way in ways.values()],
        )
        for count in (2, 4, 8, 14)
        for seeds in (1, 2, 3, 10)
    )
    note = "Noise of 5 %; no method is better than another."
    yield _table("A method is called behind an equal one", note, "methods with seeds", ways, rows)
    unlike = {
        "one with 10 times the noise": Methods(14, 5, noise=(0.5, *[0.05] * 13)),
        "noises of 1, 3, 5, 10 and 20 %": Methods(14, 5, noise=(0.01, 0.03, 0.05, 0.1, 0.2)),
        "seeds that share an effect of 20 %": Methods(14, 5, of_seed=0.2),
        "one run that takes e times as long": Methods(14, 5, outlier=1.0),
    }
    rows = (
        (f"{n} with {k}", [partial(share_of, replace(way, count=n, seeds=k), FEW, apart) for way in unlike.values()])
        for n in (3, 5, 14)
        for k in (1, 2, 3, 5, 10)
    )
    note = "Noise of 5 % but where another is named, seed by seed; no method is better than another."
    yield _table("The same, of unlike methods", note, "methods with seeds", unlike, rows)
    alike = {"noise of 5 %": Methods(14, 5, target=True)}
    by_target = alike | {name: replace(way, target=True) for name, way in unlike.items()}
    rows = (
        (f"{n} with {k}", [partial(share_of, replace(way, count=n, seeds=k), FEW, apart) for way in by_target.values()])
        for n in (5, 9, 18)
        for k in (3, 5)
    )
    note = "The same methods, by their times to a target, of which every two are compared with the scatter of both."
    yield _table("An equal method is called behind in time to a target", note, "methods with seeds", by_target, rows)
    ahead = {"noise of 5 %": Methods(14, 5), **unlike}
    rows = (
        (
            f"{n} with {k}",
            [
                partial(share_of, replace(way, count=n, seeds=k, lead=math.log(1.4)), FEW, Methods.overstated)
                for way in ahead.values()
            ],
        )
        for n in (5, 14)
        for k in (3, 5, 10)
    )
    note = "The first of them takes 1.4 times less than all others; wrong is a factor larger than the true one."
    yield _table("A method is called farther behind than it is", note, "methods with seeds", ahead, rows)
    rows = (
        (
            f"{k}",
            [
                partial(share_of, replace(way, seeds=k, behind=math.log(1.2)), FEW, Methods.last_excluded)
                for name, way in unlike.items()
                if "noises" not in name
            ],
        )
        for k in (3, 5, 10)
    )
    note = "The last of 14 methods, with a noise of 5 %, takes 20 % longer than all others."
    shown = [name for name in unlike if "noises" not in name]
    yield _table("A slower method is excluded from those that may be the best", note, "seeds", shown, rows, false=False)
    winners = [Methods(count, 3) for count in (2, 4, 14)] + [Methods(14, 3, target=True)]
    rows = (
        (
            f"{seeds}",
            [partial(share_of, replace(way, seeds=seeds, lead=math.log(1.2)), FEW, Methods.won) for way in winners],
        )
        for seeds in (1, 3, 5, 10)
    )
    note = "Noise of 5 %, seed by seed; the winner is 20 % faster than all others."
    heads = "2 methods", "4 methods", "14 methods", "14 methods, in time to a target"
    yield _table("A winner is found", note, "seeds", heads, rows, false=False)


def _claims() -> Iterator[Table]:
    ratio = Claims(1, ratio=True)
    ways = {
        "a score of 0.9 is at least 0.9": Claims(1, noise=0.01),
        "a ratio of times of 1 is at least 1": ratio,
        "the same, method by method, drift": replace(ratio, order="method by method", drift=math.log(1.1)),
        "the same, 4 rows": replace(ratio, rows=4),
    }
    rows = (
        (f"{seeds}", [partial(decided, replace(way, seeds=seeds), SOME) for way in ways.values()])
        for seeds in (1, 2, 3, 10)
    )
    note = 'The truth is on the bound: neither "holds" nor "fails" would be right without a doubt.'
    yield _table("A claim is decided wrongly", note, "seeds", ways, rows)
    sides: tuple[tuple[float, State], ...] = ((0.02, "holds"), (-0.02, "fails"))
    rows = (
        (f"{n}", [partial(decided, Claims(n, noise=0.01, beyond=far), SOME, (state,)) for far, state in sides])
        for n in (1, 3, 5, 10)
    )
    note = "Scores with a deviation of 1 point, 2 points above and below the bound."
    yield _table("A claim is decided rightly", note, "seeds", ("holds", "fails"), rows, false=False)


def _searches() -> Iterator[Table]:
    ways = {
        "one key, round, 1 study": Searches(2),
        "3 studies": Searches(2, studies=3),
        "one key, sharp, 1 study": Searches(2, round=False),
        "three keys, round, 1 study": Searches(2, keys=3),
        "its 3 studies": Searches(2, keys=3, studies=3),
    }
    rows = (
        (f"{n}", [partial(share_of, replace(way, count=n), FEW, Searches.told_apart) for way in ways.values()])
        for n in (2, 5, 14)
    )
    note = (
        "Settings searched with 14 draws a study, a noise of 10 %, 5 seeds; no method is better than another at its "
        "best settings: what differs is which were drawn. Judged with what another search may change, as the report's "
        "sentence on it and `harness compare --method` do; its other verdicts are of the settings that were found."
    )
    yield _table("Equal methods are told apart after a search", note, "methods", ways, rows)
    rows = (
        (
            f"{t:g} times",
            [partial(share_of, replace(way, count=5, lead=math.log(t)), FEW, Searches.ahead) for way in ways.values()],
        )
        for t in (1.3, 2.0, 4.0)
    )
    note = "The same searches of 5 methods; all but the first take so many times as long at their best settings."
    yield _table("A method is found to be ahead after a search", note, "takes", ways, rows, false=False)


def _targets() -> Iterator[Table]:
    ways = {
        "of the first's scores": Curves(2, 3),
        "runs come to 1 point more or less": Curves(2, 3, plateau=0.01),
        "of the best's scores": Curves(2, 3, plateau=0.005, of_best=True),
    }
    rows = (
        (
            f"{n} with {k}",
            [partial(share_of, replace(way, count=n, seeds=k), FEW, Curves.distinguished) for way in ways.values()],
        )
        for n in (2, 5, 14)
        for k in (3, 10)
    )
    note = (
        "Methods that learn alike; the target is 1 point below the mean over seeds of a method's best scores, as where "
        "a suite names none. A run comes to 0.2 points more or less (a deviation; of the best's 0.5), and its epochs "
        "take 5 % more or less."
    )
    yield _table("Equal methods are distinguished at a derived target", note, "methods with seeds", ways, rows)


def _rounds() -> Iterator[Table]:
    firsts = {f"{first} seeds at first": first for first in (3, 5)}
    rows = (
        (f"{n}", [partial(share_of, Rounds((1.0,) * n, first), FEW, Rounds.wrong) for first in firsts.values()])
        for n in (2, 5, 8)
    )
    note = (
        "Methods that take the same time, with a noise of 10 %; what was called at any look counts, until one is left "
        "or all have 33 seeds."
    )
    yield _table("An equal method is called behind in rounds of fresh seeds", note, "methods", firsts, rows)
    ahead = {f"{n} methods": Rounds((1.0,) * n) for n in (2, 5, 8)}
    ahead["2 methods, a seed a round"] = Rounds((1.0,) * 2, one_by_one=True)
    rows = (
        (
            f"{t:g} times",
            [
                partial(share_of, replace(way, means=(1.0, *[t] * (len(way.means) - 1))), FEW, Rounds.decided)
                for way in ahead.values()
            ],
        )
        for t in (1.05, 1.1, 1.2)
    )
    note = (
        "The others take so many times as long as the first; a noise of 10 %, 5 to 33 seeds, half as many more a round."
    )
    yield _table("Rounds of fresh seeds leave one method", note, "the others take", ahead, rows, false=False)


HEAD = f"""# Error rates

<!-- Made from the code by `python -m tools.error_rates`; do not edit. -->

How often `harness compare`, the report and `harness check-claims` say something that is not so, and how often they find
what is there. Runs are made up, so that the truth is known: run-to-run noise is a deviation of log(time), drift is a
step, a steady change or a random walk with a range of 10 %. "In turns" is A B A B; "with reference" means that the
reference workload ran before each trial and scatters by {100 * REFERENCE:g} %. Each rate is counted over
{FEW} to {MANY} draws, so that one of 5 % may show as {100 * (0.05 + 2 * math.sqrt(0.05 * 0.95 / FEW)):.0f} %.
The rules: [design/statistics.md](design/statistics.md#comparisons).

False statements are to be at most 5 %, all that is said of one comparison, ranking or claim together.
"""


def shown(rate: float) -> str:
    """Write a rate."""
    return f"{100 * rate:.1f} %"


def render(found: Iterable[Table]) -> str:
    """Return the page."""
    parts = [HEAD]
    for each in found:
        rows = [(name, *(shown(rate()) for rate in rates)) for name, rates in each.rows]
        parts.append(f"## {each.title}\n\n{each.note}\n\n{table(each.heads, rows)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/error-rates.md").write_text(render(tables()), encoding="utf-8")
