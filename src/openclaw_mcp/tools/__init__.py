"""The counter: the menu (registry), the rules (policy), the form (schema), the one way to order (desk)."""
