"""What a page of a thousand trials takes: to be written, to be opened, and to answer a filter."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from report.fake import Method, write_results

from harness.report import write_report

METHODS: tuple[Method, ...] = (
    ("full", {"precompute": False}),
    *(("bns-gcn", {"rate": rate, "sampler": "bernoulli"}) for rate in (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.8)),
    *(("graphsage", {"fanouts": [first, 10], "batch_size": size}) for first in (10, 15, 25) for size in (500, 1000)),
)
SIZES: dict[str, dict[str, Any]] = {
    "quickstart": {"datasets": [("digits", "real", "")], "methods": METHODS[:4], "parts": (1, 2), "seeds": (0, 1, 2)},
    "1,008 trials": {
        "datasets": [(name, "real", "") for name in ("digits", "cora", "citeseer")],
        "methods": METHODS, "parts": (2, 4), "seeds": tuple(range(12)),
    },
}  # fmt: skip
CLICKS = 12
SETTLES_MS = 4000
STATES = {
    "as opened": "0",
    "all sections open": "document.querySelectorAll('details.fold').forEach(each => { each.open = true; })",
    "the largest figure in sight": """{
      const size = each => each.data.textContent.length;
      plots.reduce((a, b) => size(b) > size(a) ? b : a).figure.scrollIntoView();
    }""",
}
KEYS = "[...new Set([...document.querySelectorAll('input[data-filter]')].map(each => each.dataset.filter))]"
ANSWER = """async ([key, number]) => {
  const boxes = [...document.querySelectorAll(`input[data-filter=${key}]`)];
  const start = performance.now();
  boxes[number % boxes.length].click();
  const painted = new MessageChannel();
  await new Promise(frame => {
    painted.port1.onmessage = frame;
    requestAnimationFrame(() => painted.port2.postMessage(0));
  });
  const first = performance.now() - start;
  while (called) await new Promise(next => setTimeout(next, 1));
  return [first, performance.now() - start];
}"""


@pytest.mark.parametrize("size", SIZES)
def test_page(size: str, tmp_path: Path, browser: Any) -> None:
    root = write_results(tmp_path, epochs=20, **SIZES[size])
    before = time.process_time()
    index = write_report(root, root / "out", ("html",))
    print(f"\n{size}: {index.stat().st_size / 1e6:.1f} MB, written in {time.process_time() - before:.1f} CPU s")
    for name, width, height in (("desktop", 1440, 900), ("phone", 390, 844)):
        page = browser.new_page(viewport={"width": width, "height": height})
        start = time.perf_counter()
        page.goto(index.as_uri(), wait_until="load")
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        opened = time.perf_counter() - start
        print(f"  {name}: opened in {opened:.2f} s")
        for state, script in STATES.items():
            page.evaluate(script)
            page.wait_for_timeout(SETTLES_MS)
            for key in page.evaluate(KEYS):
                times = [page.evaluate(ANSWER, [key, number // 2]) for number in range(CLICKS)]
                told = ", ".join(
                    f"{what} {statistics.median(found):.0f} ms (at most {max(found):.0f})"
                    for what, found in zip(("next frame", "all drawn"), zip(*times, strict=True), strict=True)
                )
                print(f"    {state}, {CLICKS} clicks on {key}: {told}")
        page.close()
