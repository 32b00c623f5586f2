"""What torch's allocator gave out on a CPU, told by its profiler: it knows nothing of storages, hooks or plans."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def allocated(work: Callable[[], object]) -> int:
    """Return the most bytes that were allocated at once while `work` ran, beside what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    assert changes
    now = most = 0
    for _, nbytes in sorted(changes, key=lambda change: change[0]):
        now += nbytes
        most = max(most, now)
    return most
