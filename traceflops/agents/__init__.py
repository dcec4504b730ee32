"""Traces for agents, by the Model Context Protocol (extra `mcp`).

folders named on the command line
|  Folders: real paths below them, or a refusal that says nothing of what is outside
v
Tools     open_trace(path, words) -> id; every other tool takes an id
|         Opened: the Analysis and its JSON report; a few are kept, by path and file times
v
answers   objects, lists as `Some` of so many items
|  fitted(): lists and texts cut until the JSON has at most 8 KB; `more` counts the rest
v
server    over standard input and output; errors in two lines
"""
