"""Tensor parallelism: groups of ranks and the processes that run them."""
