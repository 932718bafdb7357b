//! Writable copies of a snapshot, with a repository of their own where one was recorded.
