//! The contract, implemented: each method opens the store and hands over to the module that does the work.

/// Snapshots of any directory in a private Git object store.
#[derive(Debug, Default)]
pub struct GitProvider {}
