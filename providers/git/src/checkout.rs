//! Writing a snapshot's tree to disk, in parallel, with exact modes and times. Used by `view` and `clone`.
