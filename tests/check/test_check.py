"""`check_method` on every shipped method, which holds, and on methods with faults, each seen by its check."""

from __future__ import annotations

import functools

import pytest
from support.methods import SMALL, Secretive
from support.tiers import batch_of, tiered

from harness.check import CheckReport, Subject, check_method, check_methods
from harness.check.claims import options_finding
from harness.errors import UserError
from harness.runtime.method import METHODS

# The first test of a tier runs what all of them judge.
pytestmark = pytest.mark.timeout(600)

CLAIMS = {  # that a method makes beyond what all are held to
    "full": {"exact", "bytes"},
    "roc": {"exact", "bytes"},
    "local": {"bytes"},
    "adaqp": {"bytes"},
    "pipegcn": {"exact", "bytes"},
    "vrgcn": {"exact", "bytes"},
    "sign": {"exact", "bytes"},
    "clustergcn": {"exact", "bytes"},
    "gas": {"exact", "bytes"},
}
ALL = {"options", "runs", "flags", "exact", "unbiased", "bytes", "deterministic", "resumes", "trouble"}
FAULTS = {
    "UnscaledBNS": {"unbiased"},
    "UnscaledPSC": {"unbiased"},
    "UnscaledLADIES": {"unbiased"},
    "AveragedGuided": {"unbiased"},
    "Uneven": {"exact"},
    "Wasteful": {"bytes"},
    "Unseeded": {"deterministic", "resumes"},
    "Inattentive": {"runs"},
    "Drifting": {"runs", "trouble"},
    "Exploding": {"runs"},
    "Forgetful": {"resumes"},
}
QUICK_FAULTS = ("Wasteful",)


@functools.cache
def reports(world: int, *names: str) -> dict[str, CheckReport]:
    """Check all of them in the same groups of ranks."""
    subjects = {Subject(name): METHODS.load(name) for name in names}
    small = {subject: SMALL.get(subject.name, {}) for subject in subjects}
    return dict(zip(names, check_methods(subjects, options=small, worlds=[world], limit_s=100), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS.names())
def test_a_shipped_method_is_what_it_claims(name: str) -> None:
    report = reports(3, *batch_of(name, METHODS.names(), size=5))[name]  # three ranks show whatever two do
    assert report.ok, "\n".join(report.lines)
    states = {finding.check: finding.state for finding in report.findings}
    assert states.keys() == ALL
    claimed = {check for check, state in states.items() if state == "ok"}
    of_all = {"options", "runs", "flags", "deterministic", "resumes", "trouble"}
    assert claimed - of_all == CLAIMS.get(name, {"exact", "unbiased", "bytes"})


@pytest.mark.parametrize("name", tiered(FAULTS, QUICK_FAULTS))
def test_a_fault_is_seen_by_its_check(name: str) -> None:
    together = [f"support.methods:{each}" for each in FAULTS if (each in QUICK_FAULTS) == (name in QUICK_FAULTS)]
    report = reports(2, *together)[f"support.methods:{name}"]
    assert set(report.failed) == FAULTS[name], "\n".join(report.lines)


@pytest.mark.slow
def test_a_rank_that_waits_for_ever_is_ended_and_told_where_it_was() -> None:
    report = check_method("support.methods:Waiting", limit_s=10)
    # Nor does it send what it says, where no rank has a boundary.
    assert report.failed == ["trouble", "bytes"], "\n".join(report.lines)
    finding = next(finding for finding in report.findings if finding.state == "FAIL")
    assert all("one-alone" in problem and "3 ranks" in problem for problem in finding.problems)
    assert "rank0" in finding.output


def test_options_that_are_not_told_are_seen_without_a_run() -> None:
    told = options_finding(Secretive).problems
    assert [problem.split(":")[0] for problem in told] == [
        "option rate",
        "expected a docstring whose first line says what the method does, seen none",
        "exact",
        "expected valid defaults, seen",
    ]


def test_an_option_that_there_is_not_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="--option ratio"):
        check_method("bns-gcn", options={"ratio": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check", "told"),
    [
        ("Twice", "runs", "the weights changed between two steps"),
        ("WhenLookedAt", "runs", "an evaluation changed the weights"),
        ("AroundTheCommunicator", "flags", "rank 0: bytes: sockets sent"),
    ],
)
def test_what_a_trial_ends_or_is_flagged_for_is_checked_too(name: str, check: str, told: str) -> None:
    report = check_method(f"support.cheats:{name}", limit_s=100)
    assert report.failed[0] == check
    assert told in "\n".join(report.lines)
