"""Text for people, in a terminal or in a page: numbers, untrusted text, charts, page layout.

May import nothing else of the gateway."""
