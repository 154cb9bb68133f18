"""What Prudent knows about the engines."""
