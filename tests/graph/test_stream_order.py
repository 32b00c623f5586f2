"""The order of streams that the fake device keeps: what would be a race on a GPU is told, what is in order is not."""

from __future__ import annotations

import pytest
from support.stream_order import StreamOrder

MADE, USER = 0, 1  # streams
AT = 64  # an address


class Memory:
    """One piece of memory that the stream MADE makes, and what was said of its use."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.order = StreamOrder(self.said.append, lambda: "here")
        self.freed = False
        self.order.work(MADE, (), (), {AT: lambda: self.freed})

    def wait(self, stream: int = USER, other: int = MADE) -> None:
        """Have a stream wait for an event of another's present moment."""
        self.order.after(stream, self.order.moment(other))

    def read(self) -> None:
        self.order.work(USER, [AT], (), {})

    def free(self) -> None:
        self.freed = True
        self.order.look()


def test_a_copy_that_does_not_wait_for_its_producer_is_told() -> None:
    memory = Memory()
    memory.read()
    assert memory.said == ["read before it was written: here"]


def test_an_event_or_the_hosts_wait_puts_a_copy_behind_its_producer() -> None:
    memory = Memory()
    memory.wait()
    memory.read()
    waited = Memory()
    waited.order.waited(waited.order.moment(MADE))
    waited.read()
    assert memory.said == waited.said == []


def test_an_event_of_before_is_no_order() -> None:
    memory = Memory()
    event = memory.order.moment(MADE)
    memory.order.work(MADE, (), [AT], {})
    memory.order.after(USER, event)
    memory.read()
    assert memory.said == ["read before it was written: here"]


@pytest.mark.parametrize("ordered", [False, True])
def test_memory_that_another_stream_reads_is_not_written(ordered: bool) -> None:
    memory = Memory()
    memory.wait()
    memory.read()
    if ordered:
        memory.wait(MADE, USER)
    memory.order.work(MADE, (), [AT], {})
    assert memory.said == ([] if ordered else ["written while it was in use: here"])


@pytest.mark.parametrize("kept", ["no", "held", "waited for by its stream", "waited for by the host"])
def test_memory_that_another_stream_reads_is_not_given_back(kept: str) -> None:
    memory = Memory()
    memory.wait()
    memory.read()
    if kept == "held":
        memory.order.hold(USER, AT)
    if kept == "waited for by its stream":
        memory.wait(MADE, USER)
    if kept == "waited for by the host":
        memory.order.waited(memory.order.moment(USER))
    memory.free()
    assert memory.said == (["given back while in use: here"] if kept == "no" else [])


def test_an_address_that_is_used_again_is_another_memory() -> None:
    memory = Memory()
    memory.wait()
    memory.read()
    memory.order.work(MADE, (), (), {AT: lambda: False})
    assert memory.said == ["given back while in use: here"]
    memory.order.look()
    assert len(memory.said) == 1
