"""Readers of published raw formats: `read(source, name, work) -> GraphData`, one module a format.

`work` is the directory under construction that the graph will be written to: a reader puts arrays that are
large into it as they will stay (`features.npy`), and returns them memory-mapped. Every reader raises
`DataError`, and nothing else, for a file that is missing, damaged, truncated or foreign.
"""
