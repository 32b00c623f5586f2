"""Layers, and the model that is made of them."""
