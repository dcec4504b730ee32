"""Forward passes of inference: tokens, prefill and decode, bytes of weights and caches."""
