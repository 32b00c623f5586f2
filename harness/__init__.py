"""Benchmark harness for distributed graph-neural-network training.

A plugin needs the names of this module, and those of `harness.plugin` for more. They are imported on first use, so that
commands which train nothing stay fast. `__init__.pyi` says where they are.
"""

from harness.caches import keep_kernels_where_one_can_write
from harness.deferred import exports

keep_kernels_where_one_can_write()
__getattr__, __all__ = exports(__name__, "__init__.pyi")


def __dir__() -> list[str]:
    return __all__
