-- The tables of gateway keys, for both databases.
-- = keys_001_keys
CREATE TABLE keys (
    pk: key | id: name UNIQUE | tenant: name | name, hint: text | digest: blob UNIQUE,
    created_at: real | revoked_at: real?
);

-- = keys_002_terms
ALTER TABLE keys ADD COLUMN terms: text DEFAULT '{}';
