"""`gateway history`: sessions that agents keep on disk, read through the steering core."""
