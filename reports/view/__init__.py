"""Facts become words and tables here, the same for terminal, page and Markdown.

    Fact("idle.share", {"share": 0.31})  -> texts.words()     "idle for 31.0 % of the time"
    Finding                              -> findings.py       FindingWords: title, saving, remedy
    analysis.kernels, .ranks, ...        -> tables.py, ...    ReportTable: columns, rows of cells
    "void at::native::...<...>(int)"     -> short_names.py    labels that fit, and differ

A cell is a text of ours or a `Name` from the recording; a renderer lays it out and escapes it.
`texts.toml` has all sentences.
"""
