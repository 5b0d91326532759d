"""openclaw.json as types. Every key is declared once: schema, reference page and defaults are made from here."""
