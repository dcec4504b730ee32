"""What launches of one run did, told by another recording of the same program."""
