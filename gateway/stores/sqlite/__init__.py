"""One SQLite database, in a file or in memory; `database` is the entrance."""
