"""What trials get of a machine: all of it where they are timed, else cores and GPUs that nobody else has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.launch import slots as module
from harness.launch.hardware import cores_of, threads_of
from harness.launch.process import placements_of
from harness.launch.slots import WHOLE, Slot, Slots, needs_quiet
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig


def trial(parts: int = 2, **sections: object) -> TrialConfig:
    sections = {"timing": "off", "device": "cpu"} | sections
    suite = Suite.model_validate(
        {"name": "s", "datasets": ["sbm"], "methods": ["full"], "partition": {"parts": parts}} | sections
    )
    return expand(suite)[0]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: list(range(4, 12)))
    monkeypatch.setattr(module, "visible_gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.setenv("HARNESS_LOCKS", str(tmp_path / "locks"))


@pytest.mark.parametrize(
    ("sections", "quiet"),
    [({}, False), ({"timing": "plain"}, True), ({"timing": "wall"}, True), ({"traffic": "verify"}, True),
     ({"network": {"rate": "1gbit"}}, True)],
)  # fmt: skip
def test_what_needs_the_machine_to_itself(sections: dict[str, object], quiet: bool) -> None:
    assert needs_quiet(trial(**sections)) is quiet


def test_cores_are_nobody_elses(tmp_path: Path) -> None:
    slots = Slots(jobs=3)
    with slots.acquire(trial()) as a, slots.acquire(trial()) as b, slots.acquire(trial(parts=4)) as c:
        assert (a.slot, b.slot, c.slot) == (Slot((4, 5)), Slot((6, 7)), Slot((8, 9, 10, 11)))
        with slots.acquire(trial()) as d:
            assert d is None
    with slots.acquire(trial()) as again:
        assert again.slot == Slot((4, 5))


def test_a_trial_of_one_runner_has_all_cores_and_is_not_pinned() -> None:
    with Slots().acquire(trial()) as one, Slots().acquire(trial()) as two:
        assert one.slot == WHOLE
        assert two is None


def test_more_ranks_than_cores_share_them() -> None:
    with Slots(jobs=4).acquire(trial(parts=16)) as acquired:
        assert acquired.slot == WHOLE


@pytest.mark.parametrize("first", ["timed", "untimed"])
def test_a_timed_trial_is_alone(first: str) -> None:
    timed, untimed = trial(timing="plain"), trial()
    one, other = (timed, untimed) if first == "timed" else (untimed, timed)
    with Slots(jobs=4).acquire(one) as acquired:
        assert acquired.slot == (WHOLE if first == "timed" else Slot((4, 5)))
        for second in (other, timed):
            with Slots(jobs=4).acquire(second) as none:
                assert none is None
    with Slots(jobs=4).acquire(other) as acquired:
        assert acquired is not None


def test_together_timed_trials_share_too() -> None:
    slots = Slots(jobs=4, together=True)
    with slots.acquire(trial(timing="plain")) as a, slots.acquire(trial(timing="plain")) as b:
        assert (a.slot, b.slot) == (Slot((4, 5)), Slot((6, 7)))


def test_gpus_are_nobody_elses() -> None:
    slots, wants = Slots(jobs=4), trial().model_copy(update={"device": "cuda"})
    with slots.acquire(wants) as a, slots.acquire(wants) as b, slots.acquire(wants) as none:
        assert (a.slot, b.slot) == (Slot((4, 5), ("0", "1")), Slot((6, 7), ("2", "3")))
        assert none is None
        with slots.acquire(trial()) as c:  # the cores of who found no GPU are free
            assert c.slot == Slot((8, 9))


def test_ranks_divide_a_slot() -> None:
    slot = Slot((4, 5, 6, 7, 8), ("2",))
    placed = [slot.placed(each, 2) for each in placements_of(range(2), 2)]
    assert [(each.cores, each.gpus) for each in placed] == [((4, 5), ("2",)), ((6, 7), ("2",))]


def test_ranks_share_cores_in_turn_where_there_are_few() -> None:
    ranks = placements_of(range(4), 4)
    assert [Slot((4, 5, 6)).placed(each, 1).cores for each in ranks] == [(4,), (5,), (6,), (4,)]
    assert [Slot((4, 5, 6)).placed(each, 2).cores for each in ranks] == [(4, 5), (4, 6), (5, 6), (4, 5)]


def test_ranks_of_a_whole_machine_are_pinned_unless_a_quota_hides_which_cores_are_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = placements_of(range(2), 2)[1]
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(4, 12)))
    assert WHOLE.placed(second, 3).cores == (7, 8, 9)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(64)))
    assert WHOLE.placed(second, 3) == second


def test_cores_and_threads_of_a_rank_follow_from_each_other() -> None:
    of = {"train": {}, "cores": {"train": {"cores": 2}}, "threads": {"train": {"threads": 3}}}
    both = {"train": {"cores": 3, "threads": 1}}
    for sections, cores, threads in ((of["train"], 4, 4), (of["cores"], 2, 2), (of["threads"], 4, 3), (both, 3, 1)):
        one = trial(**sections)
        assert (cores_of(one, of=8), threads_of(one, of=8)) == (cores, threads)
    assert (cores_of(trial(16), of=8), cores_of(trial(**of["threads"]), of=2)) == (1, 2)
    assert cores_of(trial(16), nodes=8, of=8) == 4


def named(name: str) -> TrialConfig:
    """Return a trial that no other name has."""
    return trial(seeds=[ord(name)])


def names(acquired: module.AcquiredSlot) -> list[str]:
    known = {named(name).id: name for name in "abcd"}
    return [known[each["trial"]] for each in acquired.neighbours()]


def test_neighbours_see_each_other_whoever_came_first() -> None:
    slots = Slots(jobs=4)
    with ExitStack() as stack:
        a, b = (stack.enter_context(slots.acquire(trial())) for _ in range(2))
        a.announce(named("a"))
        assert a.neighbours() == []
        b.announce(named("b"))
        with slots.acquire(trial()) as c:
            c.announce(named("c"))
            assert set(names(c)) == {"a", "b"}
        with slots.acquire(trial()) as d:  # takes the place of c, and has never seen it
            d.announce(named("d"))
            assert set(names(d)) == {"a", "b"}
        assert set(names(a)) == {"b", "c", "d"}
        assert a.described()["beside"][0] == {"trial": named("b").id, "label": named("b").label}
        assert a.described()["pinned_cores"] == [4, 5]


def test_who_comes_after_a_trial_has_stood_up_was_not_beside_it() -> None:
    slots = Slots(jobs=4)
    with slots.acquire(trial()) as a, slots.acquire(trial()) as b, slots.acquire(trial()) as c:
        a.announce(named("a"))
        b.announce(named("b"))
        a.withdraw()
        c.announce(named("c"))
        a.withdraw()
        assert [names(acquired) for acquired in (a, b, c)] == [["b"], ["a", "c"], ["b"]]


def test_the_slot_of_a_killed_runner_is_free(tmp_path: Path) -> None:
    code = (
        "import os, sys, json\nfrom harness.launch import slots\nfrom harness.suite.schema import TrialConfig\n"
        "slots.usable_cores = lambda: list(range(4, 12))\n"
        "trial = TrialConfig.model_validate(json.loads(sys.argv[1]))\n"
        "with slots.Slots(jobs=2).acquire(trial) as acquired:\n"
        "    acquired.announce(trial)\n    os.kill(os.getpid(), 9)"
    )
    one = trial()
    done = subprocess.run([sys.executable, "-c", code, json.dumps(one.model_dump(mode="json"))], check=False)
    assert done.returncode == -9
    with Slots(jobs=2).acquire(one) as acquired:
        assert acquired.slot == Slot((4, 5, 6, 7))
        acquired.announce(named("a"))
        assert acquired.neighbours() == []


def test_locks_are_this_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HARNESS_LOCKS")
    home = module._home()
    assert home.name == f"harness-{os.getuid()}"
    assert home.stat().st_mode & 0o077 == 0


def test_a_quiet_machine_runs_no_trial_and_begins_none() -> None:
    with Slots().quiet() as quiet, Slots(jobs=4).acquire(trial()) as none:
        assert quiet
        assert none is None
    with Slots(jobs=4).acquire(trial()) as acquired, Slots().quiet() as quiet:
        assert acquired is not None
        assert not acquired.alone
        assert not quiet
    with Slots().acquire(trial(timing="plain")) as acquired:
        assert acquired is not None
        assert acquired.alone
