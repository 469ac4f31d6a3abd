"""Sphinx settings; ``nox -s docs`` builds the pages into docs/_build."""

project = "qvllm"
author = "The qvllm authors"
copyright = author
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "qvllm"
myst_heading_anchors = 3
myst_enable_extensions = ["fieldlist"]
