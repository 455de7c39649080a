"""A monitor for the steering gateway, in a package apart from it."""
