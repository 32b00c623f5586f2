"""Data sets that are made on the spot, by name."""

from harness.data.generated import digits, kronecker, sbm, twin
from harness.data.generated.common import Generator, options_of

GENERATORS: dict[str, Generator] = {
    "digits": Generator(digits.make, options_of(digits.DigitsSettings), digits.info),
    "kronecker": Generator(kronecker.make, options_of(kronecker.KroneckerSettings), kronecker.info),
    "sbm": Generator(sbm.make, options_of(sbm.SBMSettings), sbm.info),
    "twin": Generator(twin.make, options_of(twin.TwinSettings), twin.info),
}

__all__ = ["GENERATORS", "Generator"]
