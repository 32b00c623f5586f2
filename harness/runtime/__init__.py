"""What a rank runs: worker, communicator, clock, exchanges, trainer and evaluation."""
