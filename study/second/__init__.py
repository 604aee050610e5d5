"""The second study: published networks, photographs, unseen classes and the rivals of today (study/README.md)."""
