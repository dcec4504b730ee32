"""AMD's rocprof, all generations: docs/parsers/rocprof.md says which file goes where."""
