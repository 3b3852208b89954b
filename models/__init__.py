"""Models: dense networks over looked-up rows, each a module with a Config and a make."""
