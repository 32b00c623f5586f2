"""Messages of nodes that are damaged, or not `harness run`'s: a line, at once."""

from __future__ import annotations

import zlib
from dataclasses import asdict

import pytest

from harness.errors import UserError
from harness.launch import messages
from harness.launch.messages import packed, unpacked
from harness.launch.rendezvous import NodeInfo, check_plan, expand_hosts


def no_more(number: int) -> bytes:
    raise AssertionError("no piece was promised")


@pytest.mark.parametrize("value", [{"a": [1, None, "é"]}, [], "", 0, None])
def test_what_is_packed_comes_out(value: object) -> None:
    data = packed(value)
    assert unpacked("k", b"0:" + data, no_more) == value
    assert unpacked("k", b"2:" + data[:3], lambda number: data[3:5] if number == 1 else data[5:]) == value


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"", "does not say in how many pieces"),
        (b"999999:x", "does not say in how many pieces"),
        (b"-1:x", "does not say in how many pieces"),
        (b"0:xyz", "Error -3"),
        (b"0:" + packed({"a": 1})[:-3], "ends early"),
        (b"0:" + zlib.compress(b"{"), "Expecting"),
        (b"0:" + zlib.compress(b"[" * 200_000), "recursion"),
        (b"0:" + zlib.compress(b"\xff"), "can't decode"),
    ],
)
def test_what_is_damaged_is_one_line(first: bytes, why: str) -> None:
    with pytest.raises(UserError, match=f"k: a message of another node is damaged: .*{why}") as error:
        unpacked("k", first, no_more)
    assert str(error.value).isprintable()


def test_a_message_that_unpacks_to_more_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "UNPACKED", 1000)
    assert unpacked("k", b"0:" + packed("x" * 998), no_more) == "x" * 998
    with pytest.raises(UserError, match="unpacks to more than"):
        unpacked("k", b"0:" + packed("x" * 5000), no_more)


def test_pieces_without_end_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGEST", 1 << 20)
    asked: list[int] = []
    with pytest.raises(UserError, match="it has more than 1 MiB"):
        unpacked("k", b"9999:", lambda number: asked.append(number) or bytes(1 << 18))
    assert len(asked) == 5


def test_a_node_says_what_it_is_in_full() -> None:
    info = NodeInfo("s", "10.0.0.1", 0, {})
    assert NodeInfo.of(asdict(info)) == info
    for said in ([], {}, None, asdict(info) | {"more": 1}, asdict(info) | {"gpus": "2"}):
        with pytest.raises(UserError, match="NodeInfo: a message of another node is damaged"):
            NodeInfo.of(said)


def test_a_plan_that_lacks_something_is_another_version() -> None:
    own = dict.fromkeys(("nodes", "versions", "plugins", "suite", "timeouts"), 1) | {"trials": {"a": "b"}}
    check_plan(own, dict(own))
    for plan in ({}, [], None, own | {"trials": 3}):
        with pytest.raises(UserError, match="versions: the coordinator's plan"):
            check_plan(own, plan)  # type: ignore[arg-type]


@pytest.mark.parametrize("hosts", ["a[1-99999999]", "a[1-9][0-9999]" + "[0-9]" * 3, "a[" + "9" * 5000 + "]"])
def test_a_list_that_stands_for_a_million_nodes_is_refused(hosts: str) -> None:
    with pytest.raises(UserError, match="names more than 65536 nodes"):
        expand_hosts(hosts)
