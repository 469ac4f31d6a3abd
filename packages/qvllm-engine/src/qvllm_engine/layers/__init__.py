"""Building blocks of models: tensor-parallel, loader-aware, and free of any device code of their own."""
