"""How Sphinx builds these pages: `sphinx-build -W docs OUT`. Warnings are errors in CI."""

from importlib.metadata import version as installed_version

project = "agent-cache"
author = "agent-cache developers"
copyright = "2026, agent-cache developers"
release = version = installed_version("agent-cache")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

html_theme = "furo"
html_title = f"agent-cache {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

# The order is the source's, which tells a story; a type stands in the signature, where an editor shows it too.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
# An attribute that a class docstring lists may be a property as well, which has an entry of its own.
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
# Docstrings speak Markdown's `code`, as the pages do.
default_role = "code"
