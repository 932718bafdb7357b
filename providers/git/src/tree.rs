//! Reading a snapshot: its manifest, directories, entries and file contents.
