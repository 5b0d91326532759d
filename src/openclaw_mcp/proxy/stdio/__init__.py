"""`openclaw proxy --stdio`: one session of a proxy elsewhere, over stdin and stdout."""
