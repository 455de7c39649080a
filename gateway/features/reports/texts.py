"""Reports as texts and pages, from the templates of this folder."""

from functools import partial
from pathlib import Path

from gateway.text import page

rendered = partial(page.rendered, Path(__file__).with_name("templates"))
