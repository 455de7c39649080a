"""Text for people, in a terminal or in a page: numbers, untrusted text, places in a chart, layout.

May import nothing else of the gateway."""
