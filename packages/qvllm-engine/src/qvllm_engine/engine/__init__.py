"""From requests to device steps: scheduler, caches, batches and the runner."""
