-- The table of saved views of the list of runs, for both databases.
-- = pages_001_views
CREATE TABLE saved_views (
    id: name? PRIMARY KEY | tenant: name | author, name, query: text | at: real
);
