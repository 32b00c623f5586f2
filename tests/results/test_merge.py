from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.results.frames import load_epochs, load_results
from harness.results.record_store import SUITE_FILE, Merged, ResultStore, merge_results

A, B, C = "a" * 12, "b" * 12, "c" * 12
ROWS = [{"epoch": 0, "rank": 0, "epoch_time_s": 1.0}]


@pytest.fixture
def write(tmp_path: Path, make_record):
    def write_one(machine: str, trial: str, *, suite: str = "demo", day: int = 1, wall_s: float = 1.0) -> Path:
        record = make_record(trial, suite=suite, wall_s=wall_s, started=f"2026-01-0{day}T00:00:00+00:00")
        ResultStore(tmp_path / machine, suite).commit(trial, record, ROWS, machine)
        return tmp_path / machine

    return write_one


def trials(root: Path) -> dict[str, float]:
    frame = load_results(root)
    return dict(zip(frame["trial"], frame["wall_s"], strict=True))


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_results_of_machines_are_put_together(write, tmp_path: Path) -> None:
    one, two = write("one", A), write("two", B)
    write("two", C, suite="other")
    write("two", A)
    shutil.copyfile(one / "demo" / A / "record.json", two / "demo" / A / "record.json")
    (two / "demo" / SUITE_FILE).write_text("{}")
    before = contents(one) | contents(two)
    assert merge_results(tmp_path / "out", [one, two]) == Merged(copied=3, same=1, dropped=0)
    assert trials(tmp_path / "out") == {A: 1.0, B: 1.0, C: 1.0}
    assert len(load_epochs(tmp_path / "out")) == 3
    assert (tmp_path / "out" / "demo" / A / "log.txt").read_text() == "one"  # not the second's
    assert (tmp_path / "out" / "demo" / SUITE_FILE).read_text() == "{}"
    assert contents(one) | contents(two) == before
    assert merge_results(tmp_path / "out", [one, two / "demo", two / "other" / C]) == Merged(0, 4, 0)


def test_a_trial_that_differs_ends_it_before_anything_is_copied(write, tmp_path: Path) -> None:
    out, one, two = write("out", A), write("one", B), write("two", A, day=2, wall_s=5.0)
    before = contents(out)
    with pytest.raises(UserError, match=rf"two/demo/{A}: trial {A} .* is in .*out/demo/{A} too, and differs"):
        merge_results(out, [one, two])
    assert contents(out) == before


@pytest.mark.parametrize(("keep", "kept"), [("first", 1.0), ("latest", 5.0)])
def test_keep_says_which_is_taken(write, keep, kept: float) -> None:
    out, two, three = (write("out", A), write("two", A, day=3, wall_s=5.0), write("three", A, day=2, wall_s=7.0))
    assert merge_results(out, [two, three], keep) == Merged(int(keep == "latest"), 0, 2)
    assert trials(out) == {A: kept}


def test_a_record_cannot_lead_out_of_the_results(write, tmp_path: Path) -> None:
    one = write("one", A)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (one / "demo" / A / "log.txt").unlink()
    (one / "demo" / A / "log.txt").symlink_to(secret)
    merge_results(tmp_path / "out", [one])
    assert not (tmp_path / "out" / "demo" / A / "log.txt").exists()
    record = one / "demo" / A / "record.json"
    text = record.read_text()
    record.write_text(text.replace(A, "../../x"))
    with pytest.raises(UserError, match="is the record of trial"):
        merge_results(tmp_path / "other", [one])
    record.write_text(text.replace('"demo"', '"../demo"'))
    with pytest.raises(UserError, match="cannot name a directory"):
        merge_results(tmp_path / "other", [one])
    assert not (tmp_path / "other").exists()


def test_nothing_to_merge(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished trial"):
        merge_results(tmp_path / "out", [tmp_path])
    with pytest.raises(UserError, match="no such directory"):
        merge_results(tmp_path / "out", [tmp_path / "missing"])


def test_a_trial_whose_copy_fails_is_nobodys_and_not_done(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, store = write("one", A), ResultStore(tmp_path / "out", "demo")

    def full(*paths: Path) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(OSError, match="full"):
            merge_results(tmp_path / "out", [one])
    left = store.leases().latest()[A]
    assert (left.runner, left.done) == (None, False)
    assert merge_results(tmp_path / "out", [one]) == Merged(copied=1, same=0, dropped=0)
    assert store.leases().latest()[A].done


def test_a_linked_record_is_refused_before_anything_is_copied(write, tmp_path: Path) -> None:
    one = write("one", A)
    write("one", B)
    for name in ("record.json", "epochs.parquet"):
        file = one / "demo" / B / name
        file.rename(tmp_path / name)
        file.symlink_to(tmp_path / name)
        with pytest.raises(UserError, match=rf"{B}/{name}: is a link, which is not copied"):
            merge_results(tmp_path / "out", [one])
        assert not (tmp_path / "out").exists()
        file.unlink()
        (tmp_path / name).rename(file)
    (one / "demo" / C).symlink_to(one / "demo" / A)  # a trial of that name it is not
    with pytest.raises(UserError, match="is the record of trial"):
        merge_results(tmp_path / "out", [one])


def test_links_in_results_are_not_written_through(write, tmp_path: Path) -> None:
    one, out, outside = write("one", A), tmp_path / "out" / "demo", tmp_path / "outside"
    (one / "demo" / SUITE_FILE).write_text("{}")
    measured = one / "demo" / "reference.jsonl"
    measured.write_text('{"machine": "m", "when": "2026-01-01T00:00:00Z", "seconds": 1.0, "cores": 1}\n')
    out.mkdir(parents=True)
    outside.mkdir()
    (outside / "precious").mkdir()
    for name in (".staging", ".runners", ".leases"):
        (out / name).symlink_to(outside)
        with pytest.raises(UserError, match=rf"{name}: is a link, which no run writes through \(remove it\)"):
            merge_results(tmp_path / "out", [one])
        (out / name).unlink()
    for name in ("suite.json", "reference.jsonl", ".reference.jsonl.lock"):
        (out / name).symlink_to(outside / name)
    for name in ("reference.jsonl", ".reference.jsonl.lock"):
        with pytest.raises(OSError, match="symbolic"):
            merge_results(tmp_path / "out", [one])
        (out / name).unlink()
    assert merge_results(tmp_path / "out", [one]) == Merged(0, 1, 0)
    assert (out / SUITE_FILE).read_text() == "{}"
    assert not (out / SUITE_FILE).is_symlink()
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_a_link_in_place_of_a_trial_gives_way(write, tmp_path: Path, make_record) -> None:
    write("one", A)
    store, outside = ResultStore(tmp_path / "out", "demo"), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    store.directory.mkdir(parents=True)
    (store.directory / A).symlink_to(outside)
    for _ in range(2):
        store.commit(A, make_record(A), ROWS, "")
    assert not (store.directory / A).is_symlink()
    assert [path.name for path in outside.iterdir()] == ["kept"]
