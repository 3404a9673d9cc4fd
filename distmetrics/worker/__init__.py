"""The thread that takes windows to records, and what feeds and empties it."""
