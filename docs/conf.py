"""Sphinx settings; ``nox -s docs`` builds the pages into docs/_build."""

project = "qvllm"
author = "The qvllm authors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "signature"
# The docstrings' code is Markdown's, single or double backquotes alike.
default_role = "code"
napoleon_use_ivar = True
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "qvllm"
myst_heading_anchors = 3
