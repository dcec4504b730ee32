"""Two recordings: what changed, by how much, why, and how sure.

Takes two analyses, or the JSON of their reports; gives a Comparison whose parts sum exactly.
"""
