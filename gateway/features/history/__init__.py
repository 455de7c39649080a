"""`gateway history`: sessions that agents keep on disk, read through the steering core."""

OFFERS = ("find:identify", "reading:recording_of")
