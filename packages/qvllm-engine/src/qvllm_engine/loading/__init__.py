"""From a model's name to the tensors of its checkpoint."""
