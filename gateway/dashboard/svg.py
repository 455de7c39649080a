"""SVG as text, every value escaped.

Positions are percentages of a drawing that has no view box, so that it fills any width while text
and strokes keep their size; only curves are drawn in a box of their own that is stretched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """One element. `class_` is `class`, other underscores are hyphens; None leaves one out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inner = "".join(str(escape(child)) for child in children)
    return Markup(f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>")  # noqa: S704


def joined(parts: Iterable[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup("").join(parts)


def drawing(height: int, *children: Markup, **attributes: object) -> Markup:
    """A drawing as wide as its place, `height` pixels high.

    One without a label of its own says what stands beside it as text.
    """
    hidden = {} if "aria_label" in attributes else {"aria_hidden": "true"}
    return element("svg", *children, width="100%", height=height, **attributes, **hidden)


def share(value: float, whole: float) -> str:
    """`value` of `whole` as a percentage; 0 of nothing."""
    return f"{100 * value / whole if whole else 0.0:.3f}%"


def stretched(height: float, *children: Markup, box: tuple[float, float]) -> Markup:
    """A box of its own units, (width, height), stretched over the whole drawing."""
    return element(
        "svg",
        *children,
        width="100%",
        height=height,
        viewBox=f"0 0 {box[0]:g} {box[1]:g}",
        preserveAspectRatio="none",
        overflow="visible",
    )


def curve(points: Sequence[tuple[float, float] | None], **attributes: object) -> Markup:
    """A line through points, broken where one is None."""
    parts, down = [], False
    for point in points:
        if point is not None:
            parts.append(f"{'L' if down else 'M'}{point[0]:.4g} {point[1]:.4g}")
        down = point is not None
    return element(
        "path", d=" ".join(parts) or "M0 0", vector_effect="non-scaling-stroke", **attributes
    )


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
