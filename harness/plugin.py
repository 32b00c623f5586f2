"""Names for authors of plugins beyond those of `harness`: what shipped methods are made of.

Graphs and blocks, kernels on the host and on a device, samplers, batches, exchanges, memory and traffic models. Each
name is imported on first use; docs/reference/plugin.md lists them, `plugin.pyi` says where they are.
"""

from harness.deferred import exports

__getattr__, __all__ = exports(__name__, "plugin.pyi")
