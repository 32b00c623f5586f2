"""A report's tables and figures as a paper needs them."""
