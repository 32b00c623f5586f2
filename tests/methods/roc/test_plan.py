"""Plans: what they move and hold, walked through; the fewest bytes, by brute force and by an integer program."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from harness_methods.roc.plan import (
    MOST_STATES,
    Away,
    Gap,
    Moment,
    Plan,
    Trace,
    fewest_bytes,
    least_recently_used,
    make_plan,
)
from scipy.optimize import Bounds, LinearConstraint, milp
from support.tiers import tiered

SEEDS = range(40)


def make_trace(seed: int, items: int) -> Trace:
    """Return a made-up step of matrices of up to seven sizes, which are saved once or twice and then read as often.

    Mostly in the reverse order, as a backward pass does; some gaps are not read at their end, some matrices loaded.
    """
    random = np.random.default_rng(seed)
    saves = random.permutation(np.repeat(np.arange(items), random.integers(1, 3, items)))
    reads = saves[::-1].copy()
    if seed % 2:
        reads = random.permutation(reads)
    sizes, home = random.integers(1, 8, items), random.random(items) < 0.3
    moments = [Moment("start", -1, 0, 0, "forward")]
    moments += [Moment("save", int(item), int(sizes[item]), 0, "forward") for item in saves]
    moments += [Moment("read", int(item), 0, 0, "backward") for item in reads]
    gaps = list[Gap]()
    for item in range(items):
        touched = [at for at, moment in enumerate(moments) if moment.item == item]
        last_save = max(at for at in touched if moments[at].kind == "save")
        used = [last_save, *(at for at in touched if at > last_save)]
        for before, after in itertools.pairwise(used):
            if after > before + 1:
                gaps.append(Gap(item, int(sizes[item]), before + 1, after, before, True, bool(home[item])))
        if random.random() < 0.2 and used[-1] + 2 < len(moments):
            gaps.append(Gap(item, int(sizes[item]), used[-1] + 1, len(moments), used[-1], False, bool(home[item])))
    needs = random.integers(0, 12, len(moments)).tolist()
    return Trace(tuple(moments), tuple(needs), tuple(sorted(gaps, key=lambda gap: gap.start)))


def budgets(trace: Trace) -> Iterable[int]:
    return sorted({int(budget) for budget in np.linspace(trace.least, trace.most, 5)})


def walk(trace: Trace, away: Away) -> tuple[int, int]:
    """Do what a plan says, moment by moment; return the bytes moved both ways, and the most that is there at once."""
    copies, there, moved, most = {gap.item for gap in trace.gaps if gap.home}, set[Gap](), 0, 0
    for at, need in enumerate(trace.needs):
        for gap in trace.gaps:
            if gap.start == at:
                there.add(gap)
            if gap.end == at and gap in there:
                there.remove(gap)  # in use, or gone
            elif gap.end == at and gap.read:
                moved += gap.nbytes
            if away.get(gap) == at:
                there.remove(gap)
                moved += 0 if gap.item in copies else gap.nbytes
                copies.add(gap.item)
        most = max(most, need + sum(gap.nbytes for gap in there))
    return moved, most


def by_brute_force(trace: Trace, budget: int) -> int:
    found = []
    for choice in itertools.product([False, True], repeat=len(trace.gaps)):
        moved, most = walk(trace, {gap: gap.start for gap, leaves in zip(trace.gaps, choice, strict=True) if leaves})
        if most <= budget:
            found.append(moved)
    return min(found)


def by_integer_program(trace: Trace, budget: int) -> int:
    """Variables: whether each gap's matrix leaves, and whether each matrix is copied to the host."""
    gaps, items = trace.gaps, max(gap.item for gap in trace.gaps) + 1
    size = len(gaps) + items
    price, rows, least = np.zeros(size), [], []
    for i, gap in enumerate(gaps):
        price[i] = gap.nbytes * gap.read
        price[len(gaps) + gap.item] = 0 if gap.home else gap.nbytes
        copied = np.zeros(size)
        copied[i], copied[len(gaps) + gap.item] = -1, 1
        rows.append(copied)
        least.append(0)
    for at, need in enumerate(trace.needs):
        over = [gap.start <= at < gap.end for gap in gaps]
        rows.append(np.array([*(gap.nbytes * here for gap, here in zip(gaps, over, strict=True)), *[0] * items]))
        least.append(need - budget + rows[-1].sum())
    found = milp(price, integrality=np.ones(size), bounds=Bounds(0, 1), constraints=LinearConstraint(rows, least))
    assert found.success
    return round(found.fun)


def simulated_lru(trace: Trace, budget: int) -> int:
    """Return the bytes that a cache moves that lets the least recently used go; it knows moments, but no gaps' use."""
    recent, copied, there, moved = list[int](), {gap.item for gap in trace.gaps if gap.home}, set[int](), 0
    for at, (moment, need) in enumerate(zip(trace.moments, trace.needs, strict=True)):
        idle = {gap.item: gap for gap in trace.gaps if gap.start <= at < gap.end}
        if moment.item >= 0:
            if moment.kind == "read" and moment.item not in there:
                moved += moment_bytes(trace, moment.item)
            there.add(moment.item)
            recent = [*(item for item in recent if item != moment.item), moment.item]
        for item in list(recent):
            if need + sum(gap.nbytes for gap in idle.values() if gap.item in there) <= budget:
                break
            if item in idle and item in there:
                there.remove(item)
                moved += 0 if item in copied else idle[item].nbytes
                copied.add(item)
    return moved


def moment_bytes(trace: Trace, item: int) -> int:
    return next(moment.nbytes for moment in trace.moments if moment.item == item)


@pytest.mark.quick(10)
@pytest.mark.parametrize("seed", SEEDS)
def test_dynamic_programming_moves_the_fewest_bytes_of_all_choices(seed: int) -> None:
    trace = make_trace(seed, 5)
    assert 3 < len(trace.gaps) < 16
    moved = []
    for budget in budgets(trace):
        plan = make_plan(trace, budget, "dp")
        assert plan.best
        bytes_, most = walk(trace, plan.away)
        assert bytes_ == by_brute_force(trace, budget) == sum(trace.moved(plan.away))
        assert most == trace.peak(plan.away) <= budget
        moved.append(bytes_)
    assert moved[0] > moved[-1] == 0
    assert moved == sorted(moved, reverse=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", tiered(range(10), range(6, 10)))
def test_dynamic_programming_is_the_optimum_of_long_steps(seed: int) -> None:
    trace = make_trace(seed, 18)
    for budget in budgets(trace):
        plan = make_plan(trace, budget, "dp")
        found, most = walk(trace, plan.away)
        want = by_integer_program(trace, budget)
        assert most <= budget
        assert found == want if plan.best else found >= want


@pytest.mark.quick(19)
@pytest.mark.parametrize("seed", SEEDS)
def test_least_recently_used_moves_what_a_cache_would(seed: int) -> None:
    trace = make_trace(seed, 12)
    for budget in budgets(trace):
        plan = make_plan(trace, budget, "lru")
        found, most = walk(trace, plan.away)
        assert found == simulated_lru(trace, budget) == sum(trace.moved(plan.away))
        assert most == trace.peak(plan.away) <= budget
        assert walk(trace, make_plan(trace, budget, "dp").away)[0] <= found


def test_the_programme_sees_what_lru_does_not() -> None:
    """One of two matrices has to leave, it does not matter which; or later the other one too, if it was the first."""
    gaps = (Gap(0, 4, 2, 4, 1, True, False), Gap(1, 4, 3, 6, 2, True, False))
    moments = tuple(Moment("save", -1, 0, 0, "forward") for _ in range(7))
    trace = Trace(moments, (0, 0, 0, 4, 4, 0, 0), gaps)
    assert least_recently_used(trace, 8).away == {gaps[0]: 3}
    assert trace.moved(fewest_bytes(trace, 8).away) == (4, 4)
    trace = Trace(moments, (0, 0, 0, 4, 8, 0, 0), gaps)  # gap 0 has ended where gap 1 has to leave
    assert least_recently_used(trace, 8).away == {gaps[0]: 3, gaps[1]: 4}
    assert fewest_bytes(trace, 8).away == {gaps[1]: 3}


def test_a_loaded_matrix_leaves_without_a_move_and_a_copy_serves_twice() -> None:
    gaps = (Gap(0, 4, 1, 3, 0, True, True), Gap(1, 4, 1, 3, 0, True, False), Gap(1, 4, 4, 6, 3, True, False))
    trace = Trace(tuple(Moment("save", -1, 0, 0, "forward") for _ in range(7)), (0,) * 7, gaps)
    assert trace.moved(dict.fromkeys(gaps, 1)) == (12, 4)
    # 4 bytes of room: of the first two the loaded one leaves, the other one twice for nothing more.
    assert fewest_bytes(trace, 4).away == {gaps[0]: 1}


def test_a_budget_of_all_moves_nothing_and_one_too_small_is_refused() -> None:
    trace = make_trace(1, 6)
    for policy in ("dp", "lru"):
        assert make_plan(trace, trace.most, policy) == make_plan(trace, None, policy) == Plan({}, best=True)
        assert make_plan(trace, trace.most - 1, policy).away
        with pytest.raises(ValueError, match=f"less than {trace.least}"):
            make_plan(trace, trace.least - 1, policy)


def test_a_plan_that_left_states_out_says_so_and_is_no_worse_than_lru() -> None:
    worse = 0
    for seed in range(30):
        trace = make_trace(seed, 12)
        budget = (trace.least + trace.most) // 2
        cut, whole, lru = (
            fewest_bytes(trace, budget, 1),
            fewest_bytes(trace, budget),
            least_recently_used(trace, budget),
        )
        assert whole.best
        assert walk(trace, cut.away)[1] <= budget
        assert walk(trace, cut.away)[0] <= walk(trace, lru.away)[0]
        worse += walk(trace, cut.away)[0] > walk(trace, whole.away)[0]
        assert not (cut.best and walk(trace, cut.away)[0] > walk(trace, whole.away)[0])
    assert worse > 3
    assert MOST_STATES > 1
