"""Around the decision core, pure: who writes, what is written, texts and lessons for it."""
