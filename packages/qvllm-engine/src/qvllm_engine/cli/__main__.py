"""``python -m qvllm_engine.cli``."""

from qvllm_engine.cli import main

if __name__ == "__main__":
    main()
