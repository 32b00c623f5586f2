"""A suite's claims held against its results: verdicts, and the card that shows them."""
