"""The suites that are shipped; installed as `harness_suites`, and run by their names."""
