"""Composition: the only code that knows every part of the gateway and puts them together."""
