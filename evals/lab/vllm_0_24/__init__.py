"""vLLM 0.24: the second dialect of the practice worker, over the same memory, scheduler and replies."""
