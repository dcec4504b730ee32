"""FLOPs and bytes by the shapes that a trace recorded."""
