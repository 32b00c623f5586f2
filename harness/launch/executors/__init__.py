"""Trials on machines that a cluster's own engine hands out: each job is an ordinary `harness run`."""
