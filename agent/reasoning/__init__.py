"""What a node may ask."""
