"""numpy, numba and torch, imported when they are first used: a plan reads every method, and needs none of them.

`from harness.deferred import numba, torch` stands for `import numba` and `import torch` in modules that commands
import which train nothing, and `from harness.deferred import numpy as np` for `import numpy as np`. What such modules
make of them when they are imported, kernels and autograd functions, is made when it is first called. A rank imports
numba first, and has its kernels at once: see docs/design/code.md.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial, update_wrapper
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

__all__ = ["Deferred", "Function", "Kernel", "dist", "exports", "intrinsic", "numba", "numpy", "torch"]


class Deferred:
    """A module, by its name: it is imported when an attribute is read, and its namespace is this object's then."""

    __slots__ = ("__dict__", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = import_module(self._name)
        self.__dict__ = vars(module)
        return getattr(module, attribute)


class Kernel:
    """A kernel that numba makes when it is first called, or named by another that is compiled."""

    def __init__(self, function: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]) -> None:
        self._make = make
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Call the kernel."""
        return self.made(*arguments)

    @cached_property
    def made(self) -> Any:
        """What numba makes of it."""
        return _made(self.__wrapped__, self._make)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who copies or writes it down asks for such, and needs no numba
            raise AttributeError(name)
        return getattr(self.made, name)

    @property
    def _numba_type_(self) -> Any:
        """Its type in kernels: that of what numba makes of it."""
        from numba.core.registry import cpu_target

        made, context = self.made, cpu_target.typing_context
        context.refresh()  # or an intrinsic that was made while this kernel is compiled is not known yet
        return context.resolve_value_type(made)


class _Numba(Deferred):
    """numba, but `njit` does not import it."""

    __slots__ = ()

    def njit(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """See `numba.njit`."""
        if function is None:
            return partial(self.njit, **options)
        return _kernel(function, lambda function: _kept_alone(import_module("numba").njit(function, **options)))


def intrinsic(function: Callable[..., Any]) -> Any:
    """See `numba.extending.intrinsic`."""
    return _kernel(function, lambda function: import_module("numba.extending").intrinsic(function))


def _kernel(function: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]) -> Any:
    return _made(function, make) if "numba" in sys.modules else Kernel(function, make)


def _kept_alone(kernel: Any) -> Any:
    """Have one process at a time write a kernel's machine code, and the index of what there is last.

    numba writes the index first, and nobody waits: of two processes that compile other signatures at the same time one
    may put its code where the index has the other's.
    """
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if file is not None:
        file.save = partial(_save, file)
    return kernel


def _save(file: Any, key: Any, code: Any) -> None:
    lock = os.open(f"{file._index_path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        found = file._load_index()
        free = (name for name in map(file._data_name, count(1)) if name not in found.values())
        name = found.get(key) or next(free)
        file._save_data(name, code)
        file._save_index(found | {key: name})
    finally:
        os.close(lock)


def _made(function: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]) -> Any:
    """Return what numba makes of a function, in whose module the modules take their stand-ins' place."""
    known = function.__globals__
    for name in function.__code__.co_names:
        if isinstance(value := known.get(name), Deferred):
            known[name] = import_module(value._name)
    return make(function)


def exports(module: str, stub: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return `__getattr__` and `__all__` of a module that imports the names of its stub (.pyi) when they are read."""
    text = Path(__file__).with_name(stub).read_text(encoding="utf-8")
    own = {name: place for place, name in re.findall(r"^from (\.\S+) import \w+ as (\w+)$", text, re.MULTILINE)}

    def find(name: str) -> Any:
        if name not in own:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(own[name], "harness"), name)
        vars(sys.modules[module])[name] = value
        return value

    return find, sorted(own)


class Function:
    """A torch.autograd.Function, with `forward` and `backward` as that has them, which is made when first applied."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Return what the function makes of `arguments`, and have autograd follow it."""
        passes = {name: vars(cls)[name] for name in ("forward", "backward")}
        made: Any = type(cls.__name__, (torch.autograd.Function,), passes)
        cls.apply = made.apply  # type: ignore[method-assign]
        return made.apply(*arguments)


if TYPE_CHECKING:
    import numba
    import numpy
    import torch
    import torch.distributed as dist
else:
    numba, numpy = _Numba("numba"), Deferred("numpy")
    torch, dist = Deferred("torch"), Deferred("torch.distributed")
