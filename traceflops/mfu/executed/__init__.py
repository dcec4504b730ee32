"""What a trace shows to have been executed: FLOPs by op, line, data type and kernel."""
