"""What a method is held to, and what holds it: tiny graphs, groups of ranks, a dense oracle, checks."""

from harness.conformance.check import check_method, check_methods
from harness.conformance.runs import Subject
from harness.conformance.verdict import Finding, Report

__all__ = ["Finding", "Report", "Subject", "check_method", "check_methods"]
