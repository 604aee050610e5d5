"""The studies behind docs/results.md: what is trained, what it is tested on, and the pages that are made of it."""
