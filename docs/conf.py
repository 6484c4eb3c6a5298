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


def write_llms_txt(app, error):
    """Write `llms.txt` (llmstxt.org): each page with its title, as Markdown, in the order of the contents."""
    if error is None and app.builder.name == "html":
        pages = [page for page in app.env.toctree_includes["index"] if page in app.env.titles]
        lines = [f"- [{app.env.titles[page].astext()}](_sources/{page}.md.txt)" for page in pages]
        about = "> Coherent caching, recording and replay of the tool calls of Python agents."
        text = "\n".join([f"# {project}", "", about, "", "## Pages", "", *lines, ""])
        (app.outdir / "llms.txt").write_text(text, "utf-8")


def setup(app):
    """Add it to the build."""
    app.connect("build-finished", write_llms_txt)
