"""How a suite's trials are planned, and how a group of ranks is started, watched and ended."""
