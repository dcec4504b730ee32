"""What takes the time, what to fix first, and the verdict in a sentence. One subject per file.

Takes accounts, tables and utilisation; gives findings with shares of the step time, and with gains.
"""
