"""Small traces made by this project, and the program that makes them."""
