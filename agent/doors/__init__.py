"""Each way in."""
