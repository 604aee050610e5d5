"""Functions that return complete runs: every table and figure of the paper, from training to the file."""
