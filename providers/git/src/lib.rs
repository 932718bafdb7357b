//! Snapshots of any directory in a private Git object store.
