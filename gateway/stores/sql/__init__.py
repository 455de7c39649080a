"""The stores over a database with SQL: one module for each subject, each statement once.

A statement names its values (`:name`). What differs between databases is in
the `engine` of `sqlite` and `postgres`, and reaches the statements as fragments of `SqlForms`."""
