"""Tables of a report, whatever they are written as."""
