"""From chat messages to steps: what an agent thought, called and got back, in any protocol."""
