"""The packages to install, and the version; all else is in pyproject.toml.

The folders `methods` and `suites` are installed as `harness_methods` and `harness_suites`: a user's own are neither
hidden by them nor hide them.

The version ends in the commit, and in a date where files differ from it, so that no two builds pass as alike:
records of an installed copy have no other way to tell.
"""

from setuptools import find_packages, setup

VERSION = "0.1.0"

setup(
    use_scm_version={
        "version_scheme": lambda _: VERSION,
        "local_scheme": "node-and-date",
        "fallback_version": VERSION,  # a copy of the files without their history
    },
    packages=[
        *find_packages(include=["harness", "harness.*"]),
        "harness_methods",
        *(f"harness_methods.{name}" for name in find_packages("methods")),
        "harness_suites",
    ],
    package_dir={"harness_methods": "methods", "harness_suites": "suites"},
)
