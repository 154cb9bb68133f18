"""Files that run on the host of the worker, standard library only."""
