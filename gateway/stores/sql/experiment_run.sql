-- Columns of one run as reports read it: ExperimentRun's fields in order, then what its last three are made of.
-- The newest call is not looked up where all succeeded.
r.id, r.started_at, r.arm, coalesce(nullif(r.unit, ''), c.id), r.outcome,
r.profile, r.agent, r.model_requested, r.tenant, r.policy_digest,
r.steps, r.scored_steps, r.input_tokens, r.cached_tokens, r.input_tokens + r.output_tokens,
CASE WHEN r.unpriced_calls = 0 THEN r.cost_usd END,
r.composite_peak, r.composite_sum, r.injections, r.updated_at, r.experiment, r.key_name, r.calls,
CASE WHEN r.unpriced_calls = 0 AND abs(r.cost_unsteered_usd - r.cost_usd - r.saved_usd)
    <= 1e-9 * (1 + r.cost_unsteered_usd) THEN r.saved_usd END,
CASE WHEN r.injections = 0 THEN 0 ELSE (
    SELECT CASE WHEN sum(CASE WHEN i.text LIKE '[omitted: %' THEN 1 ELSE 0 END) > 0 THEN -1 ELSE
        CAST(coalesce(sum(length(i.text) * (r.steps - i.step_index + 1)), 0) AS BIGINT) END
    FROM injections AS i WHERE i.run_pk = r.pk AND i.applied) END,
CASE WHEN r.errors > 0 THEN {newest} END, {hold}, r.counts
