"""The study behind docs/results.md and its longer pages: what is trained, what it is tested on, and the page that is made of it."""
