"""`gateway history`: sessions that agents keep on disk, read through the steering core."""

OFFERS = (
    "find:identify",
    "reading:recording_of",
    "session:HumanTurn",
    "session:Session",
    "typed:TypedAgain",
    "typed:contradictions",
    "typed:own_messages",
    "typed:typed_again",
)
