"""The arrows of the graph, one file each."""
