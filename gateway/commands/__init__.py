"""The commands of `gateway`, one module each; `add_parser` declares a command's arguments.

May import everything below `gateway.cli`; what a command needs besides its arguments is imported
when it runs, so that the other commands start quickly.
"""
