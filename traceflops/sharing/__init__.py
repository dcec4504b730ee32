"""What leaves the machine: whose identity and whose words are taken out of a trace before."""
