//! Finding what changed in a workspace since the private index was written.
