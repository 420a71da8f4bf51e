"""The paper's table beside ours, made from records alone: in the terminal, as Markdown, LaTeX and CSV."""
