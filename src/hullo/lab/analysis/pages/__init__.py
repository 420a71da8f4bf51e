"""Parts of the results pages, as Markdown: each is made from records alone."""
