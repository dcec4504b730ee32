"""Steps and windows: which stretches of which device the figures are about."""
