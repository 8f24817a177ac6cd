"""Programs for those who work on holdfast; nothing here is installed with it."""
