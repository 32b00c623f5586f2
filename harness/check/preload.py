"""Importing this imports what a checked rank needs, compiled kernels too: for the process that they are forked from."""

import gc

import harness.check.training  # noqa: F401
from harness.graph.kernels import load_compiled
from harness.launch.fork_server import import_for_ranks

import_for_ranks()
load_compiled()
gc.freeze()  # or every rank's collections go through all of it, and copy its pages
