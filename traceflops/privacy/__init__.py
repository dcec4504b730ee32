"""What leaves the machine: environment names are removed, all names if the user redacts.

    Trace -> redacted(trace) -> Trace             always: no folders, hosts, users, addresses
    Trace -> Redaction.trace(trace) -> Trace      with --redact: no words of its author either

      /home/ann/run7/train.py(12): step   ->  train.py(12): step         environment.py
      ann_fused_gemm_kernel               ->  name1_fused_gemm_kernel    placeholders.py
      module "Tower_3"                    ->  module 1_3                 redact_policies.py
      a note that quotes a name           ->  the sentence, with placeholders in it   redact.py

    Words of libraries, of the device table and of our own sentences stay (known_words.py), and so
    do times, shapes and categories: the figures do not change.

docs/privacy.md has the rules.
"""
