"""What `harness new` writes, and the templates that it is written from."""
