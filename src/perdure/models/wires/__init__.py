"""Wire formats: pure functions between a conversation and the bytes that providers read and write."""
