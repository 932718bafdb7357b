//! Turning a scan into trees, metadata and a snapshot commit.
