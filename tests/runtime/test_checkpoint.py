"""When checkpoints are due, which are kept, and on which one ranks agree."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.runtime.checkpoint import DAMAGED, KEPT, CheckpointPlace, Checkpoints
from harness.runtime.run_config import TrainSpec


class Ranks:
    """Ranks that are threads, and tell each other numbers."""

    def __init__(self, world: int) -> None:
        self.world, self.calls = world, 0
        self._told: list[list[int]] = [[] for _ in range(world)]
        self._barrier = threading.Barrier(world, timeout=20)

    def of(self, rank: int) -> Callable[[list[int]], list[list[int]]]:
        def tell(own: list[int]) -> list[list[int]]:
            self._told[rank] = own
            self.calls += rank == 0
            self._barrier.wait()
            found = [list(each) for each in self._told]
            self._barrier.wait()
            return found

        return tell

    def do(self, work: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.world) as threads:
            return list(threads.map(work, range(self.world)))


def kept(directory: Path, lineage: str = "a0", resume: bool = True) -> CheckpointPlace:
    return CheckpointPlace(directory=directory, lineage=lineage, resume=resume)


def checkpoints(ranks: Ranks, rank: int, place: CheckpointPlace, every: str = "1 epochs", **more: Any) -> Checkpoints:
    return Checkpoints(place, TrainSpec(checkpoint=every), rank, ranks.of(rank), **more)


def write(directory: Path, rank: int, *done: int, lineage: str = "a0") -> None:
    ranks = Ranks(1)
    for each in done:
        Checkpoints(kept(directory, lineage), TrainSpec(), rank, ranks.of(0)).write(each, {"of": [rank, each, lineage]})


def last(directory: Path, world: int, told: list[str] | None = None) -> list[Any]:
    ranks, told = Ranks(world), [] if told is None else told
    return ranks.do(lambda rank: checkpoints(ranks, rank, kept(directory)).last(told.append))


@pytest.mark.parametrize(
    "given", ["10", "0 epochs", "0 min", "0.0 min", "-1 min", "5 s", "min", "epochs", "1.5 epochs", ""]
)
def test_a_rule_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="write `10 min`, `50 epochs` or `off`"):
        TrainSpec(checkpoint=given)


@pytest.mark.parametrize(
    ("given", "epochs", "seconds"),
    [("10 min", None, 600), ("0.5 min", None, 30), ("1 epoch", 1, None), ("50 epochs", 50, None), (False, None, None)],
)
def test_rules(given: Any, epochs: int | None, seconds: float | None) -> None:
    assert TrainSpec(checkpoint=given).checkpoint_every == (epochs, seconds)


def test_by_epochs_nobody_is_asked(tmp_path: Path) -> None:
    ranks = Ranks(1)
    found = checkpoints(ranks, 0, kept(tmp_path), "3 epochs")
    assert [done for done in range(1, 10) if found.due(done)] == [3, 6, 9]
    assert ranks.calls == 0


def test_by_time_the_slowest_clock_decides_for_all_and_few_epochs_are_asked(tmp_path: Path) -> None:
    ranks, now = Ranks(2), [0.0, 0.0]

    def train(rank: int) -> list[int]:
        found = checkpoints(ranks, rank, kept(tmp_path), "1 min", clock=lambda: now[rank])
        due = []
        for done in range(1, 3101):
            now[rank] += 0.1 if rank else 0.09
            if found.due(done):
                due.append(done)
        return due

    one, two = ranks.do(train)
    assert one == two
    assert len(one) == 5  # of 310 s
    assert all(600 <= later - earlier < 620 for earlier, later in zip([0, *one], one, strict=False))
    assert ranks.calls < 80  # of 3,100 epochs


def test_a_short_trial_asks_once(tmp_path: Path) -> None:
    ranks, now = Ranks(1), [0.0]
    found = checkpoints(ranks, 0, kept(tmp_path), "10 min", clock=lambda: now[0])
    for done in range(1, 200):
        now[0] += 0.02
        assert not found.due(done)
    assert ranks.calls == 1


def test_epochs_that_become_slow_are_caught_up_with(tmp_path: Path) -> None:
    ranks, now = Ranks(1), [0.0]
    found = checkpoints(ranks, 0, kept(tmp_path), "1 min", clock=lambda: now[0])
    due = []
    for done in range(1, 200):
        now[0] += 0.5 if done < 20 else 30
        due += [done] if found.due(done) else []
    assert due[0] < 80  # asked again after half of the epochs that the rest was expected to take


def test_the_last_ones_are_kept_of_each_rank(tmp_path: Path) -> None:
    write(tmp_path, 0, 5, 10, 15, 100)
    write(tmp_path, 1, 5)
    assert sorted(path.name[:14] for path in tmp_path.iterdir()) == [
        "rank0-00000015",
        "rank0-00000100",
        "rank1-00000005",
    ]
    assert KEPT == 2


def test_ranks_agree_on_the_last_that_all_have(tmp_path: Path) -> None:
    write(tmp_path, 0, 10, 20)
    write(tmp_path, 1, 5, 10)  # was killed before it had written the next
    assert last(tmp_path, 2) == [(10, {"of": [0, 10, "a0"]}), (10, {"of": [1, 10, "a0"]})]
    assert sorted(path.name[:14] for path in tmp_path.iterdir()) == [
        "rank0-00000010",
        "rank1-00000005",
        "rank1-00000010",
    ]


def test_two_starts_are_never_mixed(tmp_path: Path) -> None:
    """On a GPU two starts from one checkpoint differ in bits."""
    write(tmp_path, 0, 10)
    write(tmp_path, 1, 10)
    write(tmp_path, 0, 20, lineage="b1")
    write(tmp_path, 1, 20, lineage="c2")
    assert [done for done, _ in last(tmp_path, 2)] == [10, 10]


def test_nothing_in_common_is_a_new_start(tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    assert last(tmp_path, 2) == [None, None]


def test_without_a_checkpoint_of_any_rank_nobody_is_asked(tmp_path: Path) -> None:
    ranks = Ranks(1)
    assert checkpoints(ranks, 0, kept(tmp_path, resume=False)).last(print) is None
    assert ranks.calls == 0


def test_a_damaged_one_is_set_aside_and_told_and_all_go_on_from_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, 0, 10, 20)
    write(tmp_path, 1, 10, 20)
    damaged = next(tmp_path.glob("rank1-00000020*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    told: list[str] = []
    assert [done for done, _ in last(tmp_path, 2, told)] == [10, 10]
    assert told == [f"checkpoint {damaged.name} is damaged: it is set aside"]
    assert damaged.with_name(damaged.name + DAMAGED).exists()


def test_one_that_is_whole_and_unreadable_takes_all_to_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, 0, 10, 20)
    write(tmp_path, 1, 10, 20)
    from hashlib import blake2b

    old = next(tmp_path.glob("rank1-00000020*"))
    old.unlink()
    content = b"no tensors"
    (tmp_path / f"rank1-00000020-a0.{blake2b(content, digest_size=16).hexdigest()}.safetensors").write_bytes(content)
    assert [done for done, _ in last(tmp_path, 2)] == [10, 10]


def test_files_that_are_none_of_it_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    for name in ("start-a0", "rank0-x.safetensors", "notes.txt"):
        (tmp_path / name).touch()
    assert last(tmp_path, 1)[0][0] == 10
    assert len(list(tmp_path.iterdir())) == 4
