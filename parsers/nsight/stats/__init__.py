"""The CSV tables of `nsys stats`."""
