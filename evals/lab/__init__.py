"""The practice ground: a worker to work on."""
