"""Importing this imports what a checked rank needs, compiled kernels too: for the process that they are forked from."""

import harness.check.training
import harness.launch.rank_imports  # noqa: F401
from harness.graph.kernels import load_compiled

load_compiled()
