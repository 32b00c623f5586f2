"""The packages to install; all else is in pyproject.toml.

The folder `methods` is installed as `harness_methods`: a user's own `methods` is neither hidden by it nor
hides it.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["harness", "harness.*"]),
        "harness_methods",
        *(f"harness_methods.{name}" for name in find_packages("methods")),
    ],
    package_dir={"harness_methods": "methods"},
)
