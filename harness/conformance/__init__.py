"""What a method is held to, and what holds it: tiny graphs, groups of ranks, a dense oracle, checks."""
