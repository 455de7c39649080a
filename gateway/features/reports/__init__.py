"""Reports: results of experiments and pilots, the value of a routing policy, the savings of
steering, and a week in figures. The figures come from records of runs."""

OFFERS = (
    "pilot:current_pilot",
    "week:monday_of",
    "week:read_week",
)
