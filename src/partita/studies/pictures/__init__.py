"""Pictures of the documentation, drawn with Matplotlib."""
