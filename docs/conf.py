"""The documentation site: `make docs` builds it, strictly, into out/docs. Every code cell runs while it is built."""

import inspect
import os
import sys
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
sys.path.append(str(ROOT / "docs"))  # gallery_warnings
# Cells run in processes of their own: they too import this tree, and their numbers do not depend on a GPU.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import legrad  # noqa: E402
import legrad.sklearn  # noqa: E402

project = "legrad"
author = "The legrad developers"
version = release = legrad.__version__
copyright = "the legrad developers"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "results",
    "**/.ipynb_checkpoints",
    "gallery/*.ipynb",
    "gallery/*.py",
    "gallery/*.json",
    "gallery/*.zip",
]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".myst": "myst-nb"}

# Pages
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_timeout = 240
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # warnings hold the paths of the machine that builds
nb_render_markdown_format = "myst"

# The reference. Types are written out in the docstrings' signatures; those of JAX and NumPyro are not links, as the
# build needs no network.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = True
default_role = "code"


# Examples that are scripts: each file plot_*.py is run and becomes a page with its output and figures.
sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "abort_on_example_error": True,
    "write_computation_times": False,
    "show_signature": False,
    "copyfile_regex": "",
    "capture_repr": (),
    "reset_modules": ("matplotlib", "gallery_warnings.without_paths"),
    "min_reported_time": 0,
}

# Looks
html_theme = "pydata_sphinx_theme"
html_title = "legrad"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sourcelink_suffix = ""
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
    "icon_links": [],
    "secondary_sidebar_items": ["page-toc"],
}
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True


def _links(app, docname, source):
    """Links that leave docs/ on GitHub lead to the page of the site that holds the same text."""
    source[0] = (
        source[0].replace("(../CONTRIBUTING.md)", "(contributing.md)").replace("(../CHANGELOG.md)", "(changelog.md)")
    )


def public_names():
    """Every public name: of legrad and legrad.sklearn, and the public methods and properties of FitResult."""
    names = [f"legrad.{name}" for name in legrad.__all__]
    names += [f"legrad.sklearn.{name}" for name in legrad.sklearn.__all__]
    return names + [
        f"legrad.FitResult.{name}"
        for name, member in vars(legrad.FitResult).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property | cached_property))
    ]


def _complete(app, exception):
    """Fails the build where the reference lacks a public name."""
    if exception or app.builder.format != "html":
        return
    documented = set(app.env.get_domain("py").objects)
    missing = [name for name in public_names() if name not in documented]
    if missing:
        from sphinx.errors import ExtensionError

        raise ExtensionError(f"the API reference (docs/api/) lacks {', '.join(missing)}: add them there")


def _skip(app, what, name, obj, skip, options):
    """Leaves out what scikit-learn adds to every estimator for its metadata routing; it links to pages of its own."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app):
    app.connect("autodoc-skip-member", _skip)
    app.connect("source-read", _links)
    app.connect("build-finished", _complete)
