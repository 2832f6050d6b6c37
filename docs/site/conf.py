"""The pages as a site: sphinx-build -W -c docs/site . _site

Sphinx reads the same Markdown files that GitHub shows, and the notebook with its outputs.
"""
import pathlib
import shutil

# Two files of one name would be one page, so the notebook gets another; git ignores the copy.
_DOCS = pathlib.Path(__file__).resolve().parent.parent
shutil.copyfile(_DOCS / 'tutorial.ipynb', _DOCS / 'tutorial_notebook.ipynb')

project = 'CIFAR-10 in graph mode'
extensions = ['myst_nb']
root_doc = 'docs/site/index'
include_patterns = ['README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'docs/*.md',
                    'docs/runs/README.md',
                    'docs/tutorial_notebook.ipynb', 'docs/site/index.md']
html_theme = 'furo'  # Search, contents, a dark mode, and pages that fit a phone.
html_title = project
html_show_copyright = False
html_static_path = ['static']
html_css_files = ['flags.css']

nb_execution_mode = 'off'  # docs/notebook.py executes the notebook.
myst_enable_extensions = ['attrs_inline']
myst_heading_anchors = 4  # GitHub's names, which the links use.
suppress_warnings = [
    'myst.header',  # The notebook's headings are split over cells.
    'misc.highlighting_failure']  # Its cells contain shell commands.
