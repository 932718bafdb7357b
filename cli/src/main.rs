//! The `ah` command line.
fn main() {}
