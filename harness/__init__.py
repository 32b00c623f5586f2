"""Benchmark harness for distributed graph-neural-network training.

A method of one's own needs only the names of this module; they are imported on first use, so that commands
which train nothing stay fast. `__init__.pyi` says where they are.
"""

import lazy_loader

from harness.caches import keep_kernels_where_one_can_write

keep_kernels_where_one_can_write()
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
