"""Features: the declared table, how its values are read, and the transforms fitted to them."""
