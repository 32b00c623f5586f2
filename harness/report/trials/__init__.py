"""What the trials of a report are: which may be compared, what each is called, their figures."""
