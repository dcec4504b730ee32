"""The slow thing alone: what a script needs to repeat one recorded call.

Analysis -> calls of operators, with arguments and time -> reports.scripts: a script
a kernel, an operator or a finding -> the call with the most time that it is about
"""
