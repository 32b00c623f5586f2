from .store import atomic_directory as atomic_directory
from .store import locked as locked
