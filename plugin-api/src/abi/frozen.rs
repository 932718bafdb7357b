//! Former editions of the table, kept so that a test can build a plugin against them.
