"""The tables of the store, revision by revision; Alembic runs what is here, nothing imports it."""
