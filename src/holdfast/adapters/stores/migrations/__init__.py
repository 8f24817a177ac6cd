"""How a database comes to the present schema, step by step."""
