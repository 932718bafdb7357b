//! Differences between two snapshots, or a snapshot and the workspace.
