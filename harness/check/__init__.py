"""What a method is held to, and what holds it: tiny graphs, groups of ranks, a dense oracle, checks."""

from harness.check.check import check_method, check_methods
from harness.check.runs import CheckFinding, CheckReport, Subject

__all__ = ["CheckFinding", "CheckReport", "Subject", "check_method", "check_methods"]
