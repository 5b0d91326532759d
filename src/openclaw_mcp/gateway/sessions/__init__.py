"""Gateway methods and events about sessions and chats."""
