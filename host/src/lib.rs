//! Finds, trusts and loads provider plugins.
