"""The measured parts of docs/trust.md: recordings -> tables; `python -m tests.trust` writes all."""
