from __future__ import annotations

import os
import threading

import pytest

from harness.graph.spmm import run_chunks


def test_every_part_runs_once_in_a_thread_of_its_own_and_again() -> None:
    for _ in range(3):
        together, seen = threading.Barrier(3, timeout=20), []

        def work(part: int, together: threading.Barrier = together, seen: list[int] = seen) -> None:
            together.wait()
            seen.append(part)

        run_chunks(work, 3)
        assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize("faulty", [0, 1])
def test_what_a_part_raises_is_raised_when_all_have_ended(faulty: int) -> None:
    ended = []

    def work(part: int) -> None:
        if part == faulty:
            raise ValueError(f"part {part}")
        threading.Event().wait(0.05)
        ended.append(part)

    with pytest.raises(ValueError, match=f"part {faulty}"):
        run_chunks(work, 2)
    assert ended == [1 - faulty]


def test_a_forked_process_has_threads_of_its_own() -> None:
    run_chunks(lambda part: None, 2)
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, (1,)).start()
        run_chunks(lambda part: None, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
