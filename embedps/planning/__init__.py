"""Plans a run before it starts: rows, memory, bytes on the wire and speed, from its dataset."""
