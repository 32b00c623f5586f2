"""Reading files that ranks are still writing."""

from __future__ import annotations

from pathlib import Path

from harness.launch.process import ProgressTail, group_log, log_path, log_tail, read_rank


def test_a_line_comes_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    tail = ProgressTail(path)
    assert tail.new() == []
    with path.open("w") as stream:
        for text in ('{"a": 1}\n{"b"', ": 2}\nnot json\n[1]\n", '{"c": 3}\n{"d": 4}'):
            stream.write(text)
            stream.flush()
            if '"b"' in text:
                assert tail.new() == [{"a": 1}]
    assert tail.new() == [{"b": 2}, {"c": 3}]
    assert tail.new() == []


def test_log_tail_starts_with_a_line(tmp_path: Path) -> None:
    log_path(tmp_path, 0).write_bytes(b"first line\n" * 10 + b"last \xff line")
    assert log_tail(tmp_path, 0, limit=30) == "first line\nlast \ufffd line"
    assert log_tail(tmp_path, 0, limit=10**6).count("first line") == 10
    assert log_tail(tmp_path, 1) == ""
    assert group_log(tmp_path, range(2)).endswith("last \ufffd line\n==== rank 1 ====\n")


def test_a_damaged_result_is_none(tmp_path: Path) -> None:
    assert read_rank(tmp_path, 0) is None
    for text in ("", "{", "[]", '{"rank": 0}', '{"status": 3}'):
        (tmp_path / "rank0.json").write_text(text)
        assert read_rank(tmp_path, 0) is None
    (tmp_path / "rank0.json").write_text('{"status": "ok"}')
    assert read_rank(tmp_path, 0) == {"status": "ok"}
