"""Records of trials: their layout on disk, their metrics, and frames of them."""
