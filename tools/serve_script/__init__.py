"""Read and edit launch files, or refuse with a reason."""
