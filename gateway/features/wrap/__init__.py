"""`gateway wrap`: one command (`wrapped`) with a gateway in front of its provider (`own_gateway`),
and a summary at its end."""
