"""What is served at which path, what it takes and what it answers: one declaration, which acts and which is shown."""
