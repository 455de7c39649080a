"""Views for operators: log lines, metrics, live events and OpenTelemetry.

May import config, wire values and the exchange; nothing here decides anything about a request."""
