"""Renderers: data in, text out. One module per output; nothing here reads a trace."""
