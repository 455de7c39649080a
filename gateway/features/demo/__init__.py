"""`gateway demo`: an agent loop against a scripted model, offline, without and with steering."""
