"""The commands of `gateway`, one module each: `add_parser` says what they take."""
