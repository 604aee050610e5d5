"""Results -> Markdown, CSV, LaTeX, figures and one self-contained HTML page."""
