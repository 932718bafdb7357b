//! Locks between processes.

/// A lock that is held until it is dropped, or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: std::fs::File,
}
