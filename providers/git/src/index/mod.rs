//! The private index: what the last scan saw of each file. A cache, nothing else.
