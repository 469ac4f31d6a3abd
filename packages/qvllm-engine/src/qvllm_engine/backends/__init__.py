"""Operator backends: the contract, the registry that finds them, and the PyTorch one."""
