"""Finished trials written for other tools to show: TensorBoard, MLflow, Weights & Biases."""
