"""Data sets that are made on the spot, by name."""

from harness.data.generated import digits, kronecker, sbm, twin
from harness.data.generated.options import Generator, options_of

GENERATORS: dict[str, Generator] = {
    "digits": Generator(digits.make, options_of(digits.Settings), digits.info),
    "kronecker": Generator(kronecker.make, options_of(kronecker.Settings), kronecker.info),
    "sbm": Generator(sbm.make, options_of(sbm.Settings), sbm.info),
    "twin": Generator(twin.make, options_of(twin.Settings), twin.info),
}

__all__ = ["GENERATORS", "Generator"]
