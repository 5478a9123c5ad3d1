"""Engines for many machines, one file each; each needs a package of its own."""
