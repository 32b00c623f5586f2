"""What explanations need of memory."""

from __future__ import annotations

from harness.runtime.layer_memory import BlockSize
from harness.runtime.memory_model import Components, MemoryCase, matrices_memory


def explanation_memory(case: MemoryCase) -> Components:
    """Return the bytes of a rank's explanation graph and guidance, on the host: none of a GPU's.

    Of the remote nodes within K hops only bounds are known: at least the boundary, at most all there are.
    """
    if case.cuda:
        return {"explanation": 0}
    remote = case.train.boundary if case.least else case.nodes - case.train.inner
    width, hidden = max(case.model.widths[: case.model.spec.hops])
    own = BlockSize(case.train.inner, case.train.inner, case.train.edges - case.train.cut)
    star = BlockSize(remote + 1, remote + 1, 2 * remote + 1)
    rows = (remote + 1) * (width + 2 * case.model.depth * hidden) + case.train.inner * hidden
    matrices = matrices_memory(case, own, transposed=False) + matrices_memory(case, star)
    return {"explanation": rows * case.itemsize + matrices + 2 * 4 * case.nodes}
