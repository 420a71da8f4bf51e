"""Parts of the results pages as Markdown, made from records."""
