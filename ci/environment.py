"""The environment variables that tests and snippets run with."""

import os

# Threads cost more than they give on small tensors, above all where sessions share few cores.
TEST_ENVIRONMENT = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONPATH": ""}
