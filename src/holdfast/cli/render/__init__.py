"""How things look on a terminal: rows, tables, pages, progress, plots."""
