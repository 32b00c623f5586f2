"""Samplers that several methods share, and what they are made of."""
