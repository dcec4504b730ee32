"""FLOPs and bytes of operators, by formula: a row of the table per operator."""
