"""Configuration of the documentation's site.

    sphinx-build -W --keep-going -n docs docs/_build/html                      # runs the gallery
    sphinx-build -W --keep-going -n -D plot_gallery=0 docs docs/_build/html    # does not

Nothing is fetched from the network, apart from the data of the gallery where no local folder has them (see
`groupdro.datasets`).
"""

import sys
from pathlib import Path

from groupdro import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "groupdro"
author = "The groupdro developers"
project_copyright = author
release = __version__
version = release

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",  # MathJax is shipped with the site
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "docstrings",
    "external_names",
    "module_map",
    "repository",
    "versions",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "snippets", "**/GALLERY_HEADER.rst"]
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}

# ---------------------------------------------------------------------- references

nitpicky = True
# Single backticks of docstrings are names of any kind, parameters included: linked where there is something to link to.
# Explicit roles (class, func, meth, attr, doc, ref) must resolve.
default_role = "py:obj"
nitpick_ignore_regex = [("py:obj", ".*")]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
toc_object_entries_show_parents = "hide"
smartquotes = False  # a prime is not a quotation mark
highlight_language = "none"  # code says what it is
autodoc_typehints = "none"  # the docstrings have the types, in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the template of a class lists them

# ---------------------------------------------------------------------- gallery

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"[\\/]plot_",
    "ignore_pattern": r"^(?!plot_)",
    "within_subsection_order": "gallery_order.ReadingOrder",
    "abort_on_example_error": True,
    "backreferences_dir": "api/generated/backreferences",
    "doc_module": ("groupdro",),
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "image_srcset": ["2x"],
    "ignore_repr_types": r"matplotlib",
    "thumbnail_size": (560, 392),
    "min_reported_time": 10,
}

# ---------------------------------------------------------------------- look

html_theme = "pydata_sphinx_theme"
html_title = "groupdro"
html_static_path = ["_static"]
html_css_files = ["groupdro.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_show_sphinx = False
html_copy_source = False
html_context = {"default_mode": "auto"}  # as the reader's system has it
html_sidebars = {"**": ["sidebar-pages"]}
html_theme_options = {
    "logo": {
        "text": "groupdro",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo_dark.svg",
        "alt_text": "groupdro: home",
    },
    "navbar_align": "left",
    "navbar_center": [],  # all pages are in the sidebar, under the sections of the first page
    "navbar_end": ["version-switcher", "theme-switcher"],
    "switcher": {
        "json_url": "_static/switcher.json",  # relative to the root of the site
        "version_match": "dev" if "dev" in release else release,
    },
    "check_switcher": False,  # it is written when the pages are
    "show_toc_level": 2,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
