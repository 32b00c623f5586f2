"""The suite file: its schema, its reading, and the trials that it expands to."""
