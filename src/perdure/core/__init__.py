"""The pure heart: facts, the fold over them and the rules that follow from it."""
