"""The commands of `gateway`, one module each; `add_parser` declares a command's arguments. What a
command needs besides them is imported when it runs, so that the others start quickly."""
