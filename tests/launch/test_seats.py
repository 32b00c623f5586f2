"""What trials get of a machine: all of it where they are timed, else cores and GPUs that nobody else has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.launch import seats as module
from harness.launch.inputs import cores_of, threads_of
from harness.launch.process import placements_of
from harness.launch.seats import WHOLE, Neighbour, Seat, Seats, needs_quiet
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
    seats = Seats(jobs=3)
    with seats.take(trial()) as a, seats.take(trial()) as b, seats.take(trial(parts=4)) as c:
        assert (a.seat, b.seat, c.seat) == (Seat((4, 5)), Seat((6, 7)), Seat((8, 9, 10, 11)))
        with seats.take(trial()) as d:
            assert d is None
    with seats.take(trial()) as again:
        assert again.seat == Seat((4, 5))


def test_a_trial_of_one_runner_has_all_cores_and_is_not_pinned() -> None:
    with Seats().take(trial()) as one, Seats().take(trial()) as two:
        assert one.seat == WHOLE
        assert two is None


def test_more_ranks_than_cores_share_them() -> None:
    with Seats(jobs=4).take(trial(parts=16)) as taken:
        assert taken.seat == WHOLE


@pytest.mark.parametrize("first", ["timed", "untimed"])
def test_a_timed_trial_is_alone(first: str) -> None:
    timed, untimed = trial(timing="plain"), trial()
    one, other = (timed, untimed) if first == "timed" else (untimed, timed)
    with Seats(jobs=4).take(one) as taken:
        assert taken.seat == (WHOLE if first == "timed" else Seat((4, 5)))
        for second in (other, timed):
            with Seats(jobs=4).take(second) as none:
                assert none is None
    with Seats(jobs=4).take(other) as taken:
        assert taken is not None


def test_together_timed_trials_share_too() -> None:
    seats = Seats(jobs=4, together=True)
    with seats.take(trial(timing="plain")) as a, seats.take(trial(timing="plain")) as b:
        assert (a.seat, b.seat) == (Seat((4, 5)), Seat((6, 7)))


def test_gpus_are_nobody_elses() -> None:
    seats, wants = Seats(jobs=4), trial().model_copy(update={"device": "cuda"})
    with seats.take(wants) as a, seats.take(wants) as b, seats.take(wants) as none:
        assert (a.seat, b.seat) == (Seat((4, 5), ("0", "1")), Seat((6, 7), ("2", "3")))
        assert none is None
        with seats.take(trial()) as c:  # the cores of who found no GPU are free
            assert c.seat == Seat((8, 9))


def test_ranks_divide_a_seat() -> None:
    seat = Seat((4, 5, 6, 7, 8), ("2",))
    placed = [seat.placed(each, 2) for each in placements_of(range(2), 2)]
    assert [(each.cores, each.gpus) for each in placed] == [((4, 5), ("2",)), ((6, 7), ("2",))]


def test_ranks_share_cores_in_turn_where_there_are_few() -> None:
    ranks = placements_of(range(4), 4)
    assert [Seat((4, 5, 6)).placed(each, 1).cores for each in ranks] == [(4,), (5,), (6,), (4,)]
    assert [Seat((4, 5, 6)).placed(each, 2).cores for each in ranks] == [(4, 5), (4, 6), (5, 6), (4, 5)]


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


def test_neighbours_see_each_other_whoever_came_first() -> None:
    seats = Seats(jobs=4)
    with ExitStack() as stack:
        a, b = (stack.enter_context(seats.take(trial())) for _ in range(2))
        a.sit(Neighbour("a", "A"))
        assert a.beside() == []
        b.sit(Neighbour("b", "B"))
        with seats.take(trial()) as c:
            c.sit(Neighbour("c", "C"))
            assert {each.trial for each in c.beside()} == {"a", "b"}
        with seats.take(trial()) as d:  # takes the place of c, and has never seen it
            d.sit(Neighbour("d", "D"))
            assert {each.trial for each in d.beside()} == {"a", "b"}
        assert {each.trial for each in a.beside()} == {"b", "c", "d"}
        assert a.described()["beside"][0] == {"trial": "b", "label": "B"}
        assert a.described()["pinned_cores"] == [4, 5]


def test_who_comes_after_a_trial_has_stood_up_was_not_beside_it() -> None:
    seats = Seats(jobs=4)
    with seats.take(trial()) as a, seats.take(trial()) as b, seats.take(trial()) as c:
        a.sit(Neighbour("a", "A"))
        b.sit(Neighbour("b", "B"))
        a.stand()
        c.sit(Neighbour("c", "C"))
        a.stand()
        assert [[each.trial for each in taken.beside()] for taken in (a, b, c)] == [["b"], ["a", "c"], ["b"]]


def test_the_seat_of_a_killed_runner_is_free(tmp_path: Path) -> None:
    code = (
        "import os, sys, json\nfrom harness.launch import seats\nfrom harness.suite.schema import TrialConfig\n"
        "seats._usable_cores = lambda: list(range(4, 12))\n"
        "with seats.Seats(jobs=2).take(TrialConfig.model_validate(json.loads(sys.argv[1]))) as taken:\n"
        "    taken.sit(seats.Neighbour('dead', 'dead'))\n    os.kill(os.getpid(), 9)"
    )
    one = trial()
    done = subprocess.run([sys.executable, "-c", code, json.dumps(one.model_dump(mode="json"))], check=False)
    assert done.returncode == -9
    with Seats(jobs=2).take(one) as taken:
        assert taken.seat == Seat((4, 5, 6, 7))
        taken.sit(Neighbour("a", "A"))
        assert taken.beside() == []


def test_locks_are_this_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HARNESS_LOCKS")
    home = module._home()
    assert home.name == f"harness-{os.getuid()}"
    assert home.stat().st_mode & 0o077 == 0


def test_a_quiet_machine_runs_no_trial_and_begins_none() -> None:
    with Seats().quiet() as quiet, Seats(jobs=4).take(trial()) as none:
        assert quiet
        assert none is None
    with Seats(jobs=4).take(trial()) as taken, Seats().quiet() as quiet:
        assert taken is not None
        assert not taken.alone
        assert not quiet
    with Seats().take(trial(timing="plain")) as taken:
        assert taken is not None
        assert taken.alone
