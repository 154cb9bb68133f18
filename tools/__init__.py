"""The hands: questions to and changes on a host."""
