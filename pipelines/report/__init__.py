"""Reports on a finished dataset: profiles its columns and renders the profile as an HTML page."""
