"""What a model and a run need by description alone: model FLOPs, conventions, MFU, HFU."""
