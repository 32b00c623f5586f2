"""Records of trials: their layout on disk, their figures, and frames of them."""
