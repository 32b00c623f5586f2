"""Training loops that a user of DGL or PyG would write, beside ours on one rank."""
