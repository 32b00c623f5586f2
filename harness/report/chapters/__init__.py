"""Parts of a report that have tables and figures of their own."""
