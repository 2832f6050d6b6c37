"""What the tutorial stands on: errors, files, checkpoints, the session that trains."""
