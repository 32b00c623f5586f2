from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.tiers import tiered

from harness.errors import UserError
from harness.results.frames import load_epochs, load_results
from harness.results.record_store import ResultStore, _check_epochs, read_at, records_under

TRIAL = "0123456789ab"
HERE = Path(__file__).parent


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "results", "demo")


def test_a_commit_is_three_files_and_nothing_else(store: ResultStore, make_record) -> None:
    stage = store.stage(TRIAL)
    (stage / "rank0.json").write_text("{}")
    home = store.commit(TRIAL, make_record(), [{"epoch": 0, "rank": 0, "epoch_time_s": 1.0}], "said\n")
    assert home == store.directory / TRIAL
    assert sorted(p.name for p in home.iterdir()) == ["epochs.parquet", "log.txt", "record.json"]
    assert (home / "log.txt").read_text() == "said\n"
    assert list(store.staging.iterdir()) == []
    assert store.finished() == {TRIAL: "ok"}


def test_a_commit_replaces(store: ResultStore, make_record) -> None:
    store.commit(TRIAL, make_record(status="error", reason="x"), [], "")
    store.commit(TRIAL, make_record(), [], "")
    assert store.finished() == {TRIAL: "ok"}
    assert list(store.staging.iterdir()) == []


def test_a_log_that_is_not_text_is_kept(store: ResultStore, make_record) -> None:
    home = store.commit(TRIAL, make_record(), [], "a\ud800b")
    assert (home / "log.txt").read_text() == "a?b"


def test_finished_ignores_what_is_not_a_record(store: ResultStore, make_record) -> None:
    assert store.finished() == {}
    store.commit(TRIAL, make_record(), [], "")
    (store.directory / "empty").mkdir()
    (store.directory / "notes.txt").write_text("")
    store.stage("ffffffffffff")
    assert store.finished() == {TRIAL: "ok"}


def test_a_damaged_record_is_named_and_a_newer_one_ends_the_command(
    store: ResultStore, make_record, capsys: pytest.CaptureFixture[str]
) -> None:
    home = store.commit(TRIAL, make_record(), [], "")
    store.commit("1" * 12, make_record("1" * 12), [], "")
    (home / "record.json").write_text("{")
    assert store.finished() == {"1" * 12: "ok"}
    assert store.finished() == {"1" * 12: "ok"}
    said = "warning: passed over: {}: damaged record: not JSON (the next run repeats it)\n"
    assert capsys.readouterr().err == said.format(home / "record.json")
    assert store.commit(TRIAL, make_record(), [], "") == home
    assert store.finished() == {TRIAL: "ok", "1" * 12: "ok"}
    (home / "record.json").write_text('{"schema_version": 99}')
    with pytest.raises(UserError, match=r"record of schema 99, .*upgrade harness"):
        store.finished()


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "a\n", "a b"])
def test_names_cannot_leave_the_directory(store: ResultStore, make_record, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot name a directory"):
        ResultStore(tmp_path, name)
    with pytest.raises(ValueError, match="not a trial id"):
        store.stage(name)
    with pytest.raises(ValueError, match="not a trial id"):
        store.commit(name, make_record(), [], "")


def test_clean_removes_what_dead_runners_left(store: ResultStore) -> None:
    for name in (f"{TRIAL}-999999", f"{TRIAL}-0123456789.commit"):
        dead = store.staging / name
        dead.mkdir(parents=True)
        (dead / "rank0.json").write_text("{}")
    (store.staging / "suite-999999").write_text("cut of")  # a `suite.json` that its writer did not come to end
    mine, other = store.stage("ffffffffffff"), ResultStore(store.root, "demo")
    with other.runner():
        theirs = other.stage(TRIAL)
        store.clean(store.leases())
        assert sorted(store.staging.iterdir()) == sorted([mine, theirs])
    store.clean(store.leases())
    assert list(store.staging.iterdir()) == [mine]
    nothing = ResultStore(store.root, "other")
    nothing.clean(nothing.leases())


def test_a_stage_is_empty(store: ResultStore) -> None:
    (store.stage(TRIAL) / "old").write_text("")
    assert list(store.stage(TRIAL).iterdir()) == []


def test_a_record_that_a_living_runner_replaces_stays_aside(store: ResultStore, make_record) -> None:
    home = store.commit(TRIAL, make_record(), [], "")
    with store.runner():
        lease, aside = store.leases().take(TRIAL, None), store.staging / f"{TRIAL}.old"
        home.rename(aside)
        other = ResultStore(store.root, "demo")
        other.clean(other.leases())
        assert aside.is_dir()
        store.leases().end(lease, done=False)
        other.clean(other.leases())
        assert home.is_dir()


@pytest.mark.parametrize("harm", ["deleted", "cut short", "emptied"])
def test_a_record_without_its_epochs_is_named(
    store: ResultStore, make_record, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.commit(TRIAL, make_record(), [{"epoch": 0, "rank": 0}], "") / "epochs.parquet"
    assert store.finished() == {TRIAL: "ok"}
    if harm == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: -1 if harm == "cut short" else 0])
    assert store.finished() == {}
    said = f"warning: passed over: {path}: damaged record: its epochs are gone or cut short (the next run repeats it)\n"
    assert capsys.readouterr().err == said


def test_a_record_moved_aside_is_found_and_put_back(store: ResultStore, make_record) -> None:
    home = store.commit(TRIAL, make_record(), [], "")
    home.rename(store.staging / f"{TRIAL}.old")  # what a runner killed between two renames leaves
    assert store.finished() == {TRIAL: "ok"}
    assert list(load_results(store.root)["trial"]) == [TRIAL]
    store.clean(store.leases())
    assert home.is_dir()
    assert list(store.staging.iterdir()) == []


def test_a_record_moved_aside_is_dropped_once_its_successor_is_there(store: ResultStore, make_record) -> None:
    store.commit(TRIAL, make_record(status="error"), [], "").rename(store.staging / f"{TRIAL}.old")
    new = ResultStore(store.root, "demo")
    new.commit(TRIAL, make_record(), [], "")
    assert new.finished() == {TRIAL: "ok"}
    assert list(store.staging.iterdir()) == []


def test_a_reader_always_finds_a_record_while_it_is_replaced(store: ResultStore, make_record) -> None:
    store.commit(TRIAL, make_record(), [], "")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            store.commit(TRIAL, make_record(), [], "")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert store.finished() == {TRIAL: "ok"}
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_record_that_moves_between_two_looks_is_found(
    store: ResultStore, make_record, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """Each look at the place where it is finds it moved to the other one just before."""
    home = store.commit(TRIAL, make_record(), [], "")
    places, is_file, left = [home, store.staging / f"{TRIAL}.old"], Path.is_file, [moves]

    def moved(path: Path) -> bool:
        here = next((place for place in places if place.exists()), None)
        if left[0] and here is not None and path == here / "record.json":
            left[0] -= 1
            here.rename(places[1 - places.index(here)])
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", moved)
    assert [place.name.removesuffix(".old") for place in records_under(store.directory)] == [TRIAL]
    assert left == [0]


def test_a_record_that_was_moved_aside_is_never_read_in_part(
    store: ResultStore, make_record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that finds the record aside reads on while its successor comes and it is removed, file by file."""
    store.commit(TRIAL, make_record(), [], "")
    rename, remove, found = Path.rename, shutil.rmtree, []

    def listed(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if path == store.directory / TRIAL:
            found.extend(records_under(store.directory))
        return moved

    def in_part(path: Path, **more: object) -> None:
        (path / "epochs.parquet").unlink(missing_ok=True)
        for place in found:
            _check_epochs(place)
        remove(path, **more)

    monkeypatch.setattr(Path, "rename", listed)
    monkeypatch.setattr(shutil, "rmtree", in_part)
    store.commit(TRIAL, make_record(), [], "")
    assert [place.name for place in found] == [f"{TRIAL}.old"]
    assert store.finished() == {TRIAL: "ok"}


def test_a_record_that_moves_while_its_epochs_are_looked_for_is_not_damaged(
    store: ResultStore, make_record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the one whether the record is still there, another came in its place."""
    home = store.commit(TRIAL, make_record(), [], "")
    open_, times = Path.open, []

    def replaced(path: Path, *mode: str, **more: object) -> object:
        if path == home / "epochs.parquet" and not times:
            times.append(0)
            store.commit(TRIAL, make_record(), [], "")
            raise FileNotFoundError(path)
        return open_(path, *mode, **more)

    monkeypatch.setattr(Path, "open", replaced)
    assert store.finished() == {TRIAL: "ok"}
    assert times


def say(root: Path) -> str | None:
    """Return what the record says, having checked that its three files say the same; None without one."""
    places = records_under(root / "demo")
    if not places:
        return None
    [place] = places
    epochs = load_epochs(root)
    assert len(epochs) == 50
    words = {read_at(place).reason, (place / "log.txt").read_text(), *epochs["word"]}
    assert len(words) == 1
    return words.pop()


@pytest.mark.slow
@pytest.mark.parametrize("mode", tiered(["steps", "times"], ["steps"]))
@pytest.mark.parametrize("old", tiered([[], ["old"]], [["old"]]), ids=["first", "replacing"])
def test_a_killed_commit_leaves_a_whole_record_or_none(tmp_path: Path, mode: str, old: list[str]) -> None:
    root = tmp_path / "killed"
    command = [sys.executable, str(HERE / "killed_commits.py"), str(root), mode, *old]
    subprocess.run(command, check=True, timeout=120)
    attempts = sorted(root.iterdir(), key=lambda path: int(path.name))
    assert len(attempts) >= 20
    found = []
    for attempt in attempts:
        found.append(say(attempt))
        store = ResultStore(attempt, "demo")
        store.clean(store.leases())
        assert say(attempt) == found[-1]
        assert not store.staging.exists() or list(store.staging.iterdir()) == []
    assert set(found) <= {"old" if old else None, "new"}
    if mode == "steps":
        assert len(set(found)) == 2
        assert found == sorted(found, key=lambda word: word == "new")  # once there, it stays
