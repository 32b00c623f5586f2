"""The page: what it consists of, and writing it."""
