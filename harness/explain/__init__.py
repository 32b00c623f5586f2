"""Online explanation: which remote nodes and which features the model's predictions rest on."""
