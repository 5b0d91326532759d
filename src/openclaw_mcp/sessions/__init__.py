"""The library: sessions, their transcripts, and the chat that goes on in them."""
