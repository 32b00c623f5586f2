"""A suite's claims held against its results: verdicts, and what they rest on."""
