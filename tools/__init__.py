"""What `make` calls that is too long for a Makefile."""
