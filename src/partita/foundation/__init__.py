"""What everything stands on and what knows nothing of inference: files, text, checks, precision, threads."""
