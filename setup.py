"""The packages to install; all else is in pyproject.toml.

The folders `methods` and `suites` are installed as `harness_methods` and `harness_suites`: a user's own are neither
hidden by them nor hide them.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["harness", "harness.*"]),
        "harness_methods",
        *(f"harness_methods.{name}" for name in find_packages("methods")),
        "harness_suites",
    ],
    package_dir={"harness_methods": "methods", "harness_suites": "suites"},
)
