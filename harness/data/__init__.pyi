from .prepared import atomic_directory as atomic_directory
from .prepared import locked as locked
