"""How the documentation is built: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402 - found beside this file

generate.write_all()

project = "ztdpu"
author = "The ztdpu authors"
project_copyright = "The ztdpu authors, Apache-2.0"
html_theme = "furo"
html_title = "ztdpu"
html_static_path = ["static"]
html_css_files = ["ztdpu.css"]
html_copy_source = False
html_show_sphinx = False
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["requirements.*"]
# `--` is an option, not a dash.
smartquotes = False
# Commands and their output are neither shell scripts nor Python.
highlight_language = "none"
