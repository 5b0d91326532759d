"""The app-tool proxy: the caretaker of the guest room. Knows every room it needs; nobody knows it but the commands."""
