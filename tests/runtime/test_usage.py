"""What a rank uses and sends, told apart by who did it; how much too much is flagged."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.cheats import work

from harness.runtime.usage import Usage
from harness.runtime.wire import SLACK_BYTES, _unlike

linux = pytest.mark.skipif(sys.platform != "linux", reason="tells no threads")


def flagless(key: str, text: str) -> None:
    pytest.fail(f"{key}: {text}")


@linux
def test_seconds_of_threads_are_whose_they_are_when_those_have_ended_too() -> None:
    harness = ThreadPoolExecutor(1)
    harness.submit(work, 0.0).result()  # starts it
    usage = Usage(1, flagless)
    method, products = ThreadPoolExecutor(1), ThreadPoolExecutor(1, "parts-of-1")
    usage.begins()
    method.submit(work, 0.04).result()
    harness.submit(work, 0.06).result()
    with usage.evaluation():
        products.submit(work, 0.06).result()
        work(0.03)
    for pool in (method, products, harness):
        pool.shutdown()
    usage.ends()
    told = usage.report()
    assert 0.04 <= told["method_cpu_s"] < 0.06
    assert 0.06 <= told["library_cpu_s"] < 0.1
    assert told["eval_method_cpu_s"] < 0.01
    assert told["children_cpu_s"] == 0


@pytest.mark.parametrize(
    ("name", "sent", "calls", "flagged"),
    [
        ("sockets", 10_000_000, 0, False),
        ("sockets", 10_560_000, 0, False),
        ("sockets", 10_600_000, 0, True),
        ("sockets", 10_600_000, 100, False),  # their headers
        ("sockets", 9_400_000, 100, True),  # they are never too many to miss bytes
        ("interfaces", 11_400_000, 0, False),  # 6907 frames, and as many words that they came
        ("interfaces", 11_500_000, 0, True),
    ],
)
def test_bytes_may_differ_by_headers_and_a_twentieth(name: str, sent: int, calls: int, flagged: bool) -> None:
    assert SLACK_BYTES == 65536
    assert bool(_unlike(name, sent, 10_000_000, calls)) is flagged
