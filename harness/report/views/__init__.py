"""Views of a report, a file each; the registry finds them."""
