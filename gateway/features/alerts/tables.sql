-- The tables of alerts, for both databases.
-- = alerts_001_alerts_and_deliveries
CREATE TABLE alerts (
    id: name? PRIMARY KEY | key: name | rule, severity, title: text | raised_at: real,
    tenant: name? | facts, path: text
);
CREATE INDEX alerts_by_time ON alerts (raised_at);
CREATE TABLE alert_keys (
    key: name? PRIMARY KEY | alert_id: name | seen_at: real
);
CREATE TABLE alert_deliveries (
    alert_id, sink: name | attempts: integer | next_at: real | owner: text | leased_until: real,
    done_at: real? | error: text,
    PRIMARY KEY (alert_id, sink)
);
CREATE INDEX alert_deliveries_due ON alert_deliveries (next_at) WHERE done_at IS NULL;
-- = alerts_002_threads
-- `alert_addresses`: one row, the address of the gateway for links.
ALTER TABLE alerts ADD COLUMN thread, update_of: name DEFAULT '';
CREATE INDEX alerts_by_thread ON alerts (thread, raised_at);
CREATE TABLE alert_addresses (
    id: integer PRIMARY KEY | sealed: text
);
-- = alerts_003_messages
ALTER TABLE alert_deliveries ADD COLUMN message: name DEFAULT '';
