"""Where logs live: one module per store, imported only when asked for."""
