"""Tables of experiments beside the paper's: in the terminal, as Markdown and CSV."""
