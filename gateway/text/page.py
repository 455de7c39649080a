"""HTML pages: one layout and one style sheet, and templates that escape and sanitize each value.

The dashboard serves its pages; reports and the history write files that load nothing."""

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gateway.text import formatting, svg
from gateway.text.sanitize import one_line, visible, without_folders
from gateway.text.secrets import mask_repeated
from gateway.values import Fields

if TYPE_CHECKING:
    from jinja2 import Environment

_SHARED = Path(__file__).parent / "page_files"
_FILTERS = (
    formatting.about,
    formatting.money,
    formatting.count,
    formatting.counted,
    formatting.percent,
    formatting.budget_share,
    formatting.points,
    formatting.score,
    formatting.change,
    formatting.seconds,
    formatting.milliseconds,
    formatting.ago,
    formatting.iso,
    formatting.clock,
    formatting.size,
    formatting.aligned,
    one_line,
    without_folders,
    mask_repeated,
)


def page_templates(*folders: Path) -> "Environment":
    """The templates in these folders and the shared ones (`layout.html`, `macros.html`). Jinja is
    imported here: a gateway whose dashboard nobody opens does not load it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([*folders, _SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_sanitized,
    )
    drawing = (svg.share, svg.stacked, svg.level_y, svg.slot_path, svg.fraction, svg.stretches)
    made.globals |= {function.__name__: function for function in drawing}
    made.filters |= {function.__name__: function for function in _FILTERS}
    return made


@cache
def style_sheet() -> str:
    """The style sheet of all pages."""
    return (_SHARED / "app.css").read_text(encoding="utf-8")


def rendered(package: str, template: str, values: Fields) -> str:
    """The text of a template in a package's folder `templates`; a page has the style sheet in it,
    so that it loads nothing."""
    folder = Path(sys.modules[package].__path__[0], "templates")
    style = Markup(style_sheet())  # noqa: S704 - a file of this package
    return page_templates(folder).get_template(template).render(values, style=style)


def _sanitized(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value
