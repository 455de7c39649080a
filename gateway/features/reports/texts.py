"""Reports as texts and pages, from the templates of this folder."""

from pathlib import Path

from markupsafe import Markup

from gateway.text.page import page_templates, style_sheet
from gateway.values import FieldDict

_FOLDER = Path(__file__).with_name("templates")


def rendered(template: str, values: FieldDict) -> str:
    """The text of a template; a page has the style sheet in it, so that it loads nothing."""
    style = Markup(style_sheet())  # noqa: S704 - a file of this package
    return page_templates(_FOLDER).get_template(template).render(values, style=style)
