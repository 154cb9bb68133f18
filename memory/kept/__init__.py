"""The store's promise kept in SQL, noun by noun; the statements are the same for SQLite and PostgreSQL."""
