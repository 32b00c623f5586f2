"""Importing this imports what a rank needs: for processes that ranks are forked from.

It starts no thread and touches no device.
"""

import numba  # noqa: F401 - first, so that no kernel is deferred
import threadpoolctl  # noqa: F401 - a rank gives OpenBLAS its threads with it

import harness.models.gnn
import harness.runtime.trainer  # noqa: F401
from harness.graph.kernels import compile_once
from harness.runtime.method import METHODS

METHODS.load_own()
compile_once()
