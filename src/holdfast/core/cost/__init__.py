"""Cost: budgets that limit what may be spent, and the report of what was."""
