"""Training methods, one file each, found through the entry-point group `harness.methods`."""
