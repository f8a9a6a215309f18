"""The operator's side: starting, stopping and looking at a cluster on Ray or in one process, and the command line.

This room may use all others, and nothing uses it except the package's public face. Ray is loaded only by the functions
that need it.
"""
