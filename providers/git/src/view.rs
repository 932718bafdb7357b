//! Read-only views of a snapshot: making them and taking them away.
