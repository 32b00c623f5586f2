"""Tuning: every method's settings searched with the same budget, and the chosen ones trained again."""
