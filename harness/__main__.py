"""`python -m harness` is the command `harness`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The working directory comes first: a user's queue.py or random.py there would be imported for Python's own.
        del sys.path[0]
    from harness.cli import main

    main()
